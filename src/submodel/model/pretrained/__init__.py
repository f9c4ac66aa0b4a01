"""Sub-models of models of `transformers`, so that a config says all that they are."""

from submodel.model.pretrained.rebuild import NoConfigError, as_pretrained, is_pretrained

__all__ = ["NoConfigError", "as_pretrained", "is_pretrained"]
