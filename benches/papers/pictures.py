"""The pictures that simulated crowds label: MNIST, or a folder given with `--pictures`."""

from dataclasses import dataclass
from pathlib import Path

from .lab import Lab


@dataclass(frozen=True)
class Pictures:
    features: Path
    truth: Path
    """Classes of the pictures to annotate: instance_id, class."""
    held: Path
    """Gold of the others: a tenth of the training pictures (`valid`), and the test pictures (`holdout`)."""
    count: int
    """Pictures to annotate."""
    is_colour: bool
    """Whether they are of 3 x 32 x 32, as those of CIFAR-10."""
    backbone: str

    def about(self) -> str:
        return f"{self.count} pictures to annotate, another ninth of them with gold, and the test pictures to score"


def pictures(lab: Lab, quick_share: int) -> Pictures:
    """Reads `features.parquet` (instance_id, pixels) and `truth.parquet` (instance_id, label, split); a quick run has only
    one of so many pictures."""
    files = {"f": lab.pictures / "features.parquet", "t": lab.pictures / "truth.parquet"}
    share = quick_share if lab.quick else 1
    numbered = "SELECT *, row_number() OVER (PARTITION BY split ORDER BY instance_id) AS n FROM t"
    some = f"SELECT instance_id, label AS class, split, n / {share} AS n FROM ({numbered}) WHERE n % {share} = 0"
    folder = lab.folder()
    train = f"SELECT instance_id, class FROM ({some}) WHERE split = 'train' AND n % 10 > 0"
    held = f"SELECT instance_id, class, CASE split WHEN 'test' THEN 'holdout' ELSE 'valid' END AS role FROM ({some})"
    truth = lab.copy(train, folder / "truth.parquet", **files)
    gold = lab.copy(f"{held} WHERE split = 'test' OR n % 10 = 0", folder / "held.parquet", **files)
    chosen = f"SELECT f.instance_id, f.pixels FROM f JOIN ({some}) s ON s.instance_id = f.instance_id"
    features = lab.copy(chosen, folder / "features.parquet", **files) if lab.quick else files["f"]
    width = lab.rows("SELECT array_length(pixels) AS width FROM f LIMIT 1", f=features)[0]["width"]
    count = lab.rows("SELECT count(*) AS n FROM t", t=truth)[0]["n"]
    colour = '{ kind = "resnet20", input = [3, 32, 32], pad_crop = 4, flip = true }'
    backbone = colour if width == 3072 else "{ hidden = [128], dropout = 0.5 }"
    return Pictures(features, truth, gold, count, width == 3072, backbone)
