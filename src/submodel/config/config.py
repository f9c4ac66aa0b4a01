"""Everything that defines a run, in sections."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from submodel.config.method import (
    DevicesSection,
    EngineSection,
    LocalSection,
    MergeSection,
    SchemeSection,
    ServerSection,
    TrainSection,
)
from submodel.config.subject import (
    AxesSection,
    ClientsSection,
    DataSection,
    ModelSection,
    TaskSection,
)
from submodel.options import Section, WithChoices


class Config(Section):
    """Everything that defines a run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=100)] = Field(
        "digits", description="names the run's folder"
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        0, description="all randomness follows from it"
    )
    model: WithChoices[ModelSection] = Field(default_factory=ModelSection)
    axes: AxesSection = AxesSection()
    task: WithChoices[TaskSection] = Field(default_factory=TaskSection)
    data: WithChoices[DataSection] = Field(default_factory=DataSection)
    clients: ClientsSection = ClientsSection()
    scheme: WithChoices[SchemeSection] = Field(default_factory=SchemeSection)
    merge: WithChoices[MergeSection] = Field(default_factory=MergeSection)
    server: WithChoices[ServerSection] = Field(default_factory=ServerSection)
    local: WithChoices[LocalSection] = Field(default_factory=LocalSection)
    train: TrainSection = TrainSection()
    engine: WithChoices[EngineSection] = Field(default_factory=EngineSection)
    devices: DevicesSection = DevicesSection()

    @field_validator("name")
    @classmethod
    def _is_a_folder(cls, name: str) -> str:
        if not name.strip("."):
            raise PydanticCustomError("reserved", "names no new folder")
        return name

    @model_validator(mode="after")
    def _devices_are_served(self) -> Self:
        if self.engine.name != "flower":
            for key, field in DevicesSection.model_fields.items():
                if getattr(self.devices, key) != field.default:
                    raise ValueError(f"devices.{key}: goes with engine.name = flower (serve)")
        return self
