"""The sections of a page that the laboratory adds: claims of records, and studies."""

from submodel_lab.pages.claims import claim_tables as tables
from submodel_lab.pages.claims import variant_titles as titles
from submodel_lab.pages.study import read_studies as studies

__all__ = ["studies", "tables", "titles"]
