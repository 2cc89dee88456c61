"""The one Pydantic base of everything that is described: frozen, and with no unknown fields."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema
from typing_extensions import Self


class Frozen(BaseModel):
    """A value: immutable, hashable, and closed to unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    __slots__ = ("_hashed",)

    def __hash__(self) -> int:
        """Of the fields, computed once: models are looked up in caches again and again."""
        hashed: int | None = getattr(self, "_hashed", None)
        if hashed is None:
            hashed = hash((type(self), *map(self.__dict__.__getitem__, type(self).__pydantic_fields__)))
            object.__setattr__(self, "_hashed", hashed)
        return hashed

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with other values in some fields. What the original had cached is computed anew."""
        copied = super().model_copy(update=update, deep=deep)
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied

    def but(self, **fields: Any) -> Self:
        """A copy with these values in its fields."""
        return self.model_copy(update=fields)


class Described(Frozen):
    """A part of a model, checked when it is made. What holds it takes it as it is and builds no schema of its inside,
    so that a kind of part is imported by the models that have one."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Its own schema; in a field of another, an instance."""
        return handler(source) if handler.field_name is None else core_schema.is_instance_schema(cls)
