"""LabelMe, as in TCL (Li et al. 2022) and CoNAL (Chu et al. 2021)."""

import re
from functools import partial

from .lab import Lab, Measured, table

TRUSTED = """
SELECT instance_id, class, CASE WHEN split = 'test' THEN 'holdout' ELSE 'train' END AS role FROM (
  SELECT instance_id, label AS class, split, row_number() OVER (PARTITION BY split, label ORDER BY instance_id) AS n FROM gold
) WHERE split = 'test' OR (split = 'valid' AND n <= 10)
"""
WITHOUT = "SELECT instance_id, label AS class, 'holdout' AS role FROM gold WHERE split = 'test'"
# (row, lines of [model], whether it has the 80 trusted instances, TCL's figure, CoNAL's figure)
MODELS = [
    ("DL-MV", 'kind = "dl"', False, "79.35", "79.83"),
    ("DL-DS", 'kind = "dl"\naggregator = { kind = "dawid_skene" }', False, "82.48", ""),
    ("DL-IBCC", 'kind = "dl"\naggregator = { kind = "ibcc" }', False, "81.92", ""),
    ("DL-CRH", 'kind = "dl"\naggregator = { kind = "crh" }', False, "80.12", ""),
    ("DL-GLAD", 'kind = "dl"\naggregator = { kind = "glad" }', False, "", "83.12"),
    ("DL-WC", 'kind = "dl"\naggregator = { kind = "worker_clustering" }', False, "", "82.74"),
    ("AggNet", 'kind = "agg_net"', False, "84.82", "84.75"),
    ("CrowdLayer", 'kind = "crowd_layer"', False, "81.42", "83.27"),
    ("CrowdLayer, over", 'kind = "crowd_layer"\nform = "over"', False, "", "82.34"),
    ("DoctorNet", 'kind = "doctor_net"', False, "", "82.12"),
    ("trace", 'kind = "trace_regularised"', False, "", "82.77"),
    ("Max-MIG", 'kind = "max_mig"', False, "85.60", "85.33"),
    ("MBEM", 'kind = "mbem"', False, "79.63", ""),
    ("MBEM, preset", 'kind = "mbem"\npreset = "paper"', False, "79.63", ""),
    ("CVL", 'kind = "cvl"', True, "86.04", ""),
    ("CoNAL", 'kind = "conal"', False, "", "87.12"),
    ("TCL", 'kind = "tcl"', True, "88.09", ""),
    ("TCL, no calibration", 'kind = "tcl"\ncalibrate = false', True, "", ""),
    ("TCL, no retraining", 'kind = "tcl"\nretrain = "none"', True, "", ""),
]
# TCL's figures with fine-tuning on the trusted instances (+F).
TUNED = {
    "DL-MV": "84.21", "DL-DS": "86.27", "DL-IBCC": "86.35", "DL-CRH": "85.32", "AggNet": "86.04", "CrowdLayer": "85.38",
    "MBEM": "85.55", "Max-MIG": "86.19", "CVL": "86.89",
}  # fmt: skip
MODELS += [
    (f"{title}+F", f"{lines}\nfine_tune = 10\nhold_back_gold = true", True, TUNED[title], "")
    for title, lines, *_ in MODELS
    if title in TUNED
]


def labelme(lab: Lab) -> str:
    def accuracy(model: str, is_trusted: bool, seed: int) -> Measured:
        folder = lab.data / "labelme"
        source = {
            "annotations": folder / "annotations.parquet", "features": folder / "features.parquet",
            "gold": folder / "truth.parquet", "sql.gold": TRUSTED if is_trusted else WITHOUT,
        }  # fmt: skip
        with lab.fit(source, model, seed) as run:
            return (lab.accuracy(run),)

    models = [row for row in MODELS if lab.kinds.keys() >= set(re.findall(r'kind = "(\w+)"', row[1]))]
    cells = [
        lab.cell(title, partial(accuracy, model, trusted))
        for title, model, trusted, *_ in models
    ]
    rows = [[row[0], "80" if row[2] else "", cell(), *row[3:]] for row, cell in zip(models, cells)]
    return f"""## LabelMe

Accuracy of the classifier on the 1 188 photographs of the test part, in percent: mean of {lab.draws} seeds and half of its 95 %
interval, with our defaults, which are not those of the papers. The kinds marked with 80 have ten trusted photographs of each
class, of the validation part; with +F they train nothing until the classifier is fine-tuned on them. None of them has annotations,
so that no fit can start at their matrices (+I). The papers have features of 8 192 numbers and ten copies of each photograph; ours are 512 numbers.

{table(["", "trusted", "ours", "TCL", "CoNAL"], rows)}{lab.footnotes()}"""
