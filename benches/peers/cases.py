"""The synthetic crowds that the comparison runs on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

ANNOTATIONS_PER_INSTANCE = 5
FORMS = ("string", "int64")
"""The types that ids and labels are written in."""
JOB_FORMS = (*FORMS, "uuid")
"""With ids that are the text of random uuids, whose labels are text as in "string"."""


@dataclass(frozen=True)
class CrowdSize:
    """The size of one crowd."""

    name: str
    instances: int
    annotators: int
    classes: int

    def scaled(self, scale: float) -> CrowdSize:
        """The same crowd with fewer instances and annotators; the classes stay."""
        share = round(self.annotators * scale / ANNOTATIONS_PER_INSTANCE)
        return replace(
            self,
            instances=max(1, round(self.instances * scale)),
            annotators=ANNOTATIONS_PER_INSTANCE * max(1, share),
        )

    def file(self, folder: Path, form: str) -> Path:
        return folder / f"{self.name}-{form}.parquet"


WIDE = ("w500", "w4k", "w100k")
CASES = {
    case.name: case
    for case in (
        CrowdSize("1m", instances=200_000, annotators=2_000, classes=5),
        CrowdSize("50c", instances=100_000, annotators=2_000, classes=50),
        CrowdSize("10m", instances=2_000_000, annotators=10_000, classes=5),
        CrowdSize("100m", instances=20_000_000, annotators=100_000, classes=6),
        CrowdSize("w500", instances=20_000, annotators=500, classes=5),
        CrowdSize("w4k", instances=20_000, annotators=4_000, classes=5),
        CrowdSize("w100k", instances=20_000, annotators=100_000, classes=5),
    )
}
