"""Constrained numbers and names for scenarios and control requests."""

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0)]
Ordinal = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=86_400.0)]
Chance = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Status = Annotated[int, msgspec.Meta(ge=200, le=599)]
Name = Annotated[str, msgspec.Meta(pattern=r"^[\w.-]+\Z")]
HeaderName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]+\Z")]
HeaderValue = Annotated[str, msgspec.Meta(pattern=r"^[\x20-\x7e]*\Z")]
