"""Sparse and complete simulated crowds, as in TCL (Li et al. 2022)."""

from functools import partial

from .lab import Lab, Measured, network, table
from .pictures import Pictures, pictures

EPOCHS = 20
TRUSTED = 1000
SIZES = (20, 50, 100, 200, 500, 1000)
AGGREGATORS = {"DL-DS": "dawid_skene", "DL-IBCC": "ibcc", "DL-CRH": "crh"}
SETS = [f"{group}-{number}" for group in ("ind", "cor") for number in range(1, 5)]
# The trusted pictures train nothing until the classifier is fine-tuned on them.
TUNED = "fine_tune = 10\nhold_back_gold = true"
AGGREGATED = {name: f'kind = "dl"\naggregator = {{ kind = "{kind}" }}' for name, kind in AGGREGATORS.items()}
# (row, lines of [model], whether it has the trusted pictures, the sets it is for, the paper's figures of these)
AFTER_TRAINING = [
    *(
        (f"{name}+F", f"{lines}\n{TUNED}", True, "ind cor", papers)
        for name, lines, papers in (
            ("DL-MV", 'kind = "dl"', "81.7 72.7 61.1 80.0 83.9 77.1 84.4 85.4"),
            ("DL-DS", AGGREGATED["DL-DS"], "89.9 82.7 64.0 83.8 84.0 53.2 82.1 86.2"),
            ("DL-IBCC", AGGREGATED["DL-IBCC"], "90.5 82.4 65.0 84.8 84.3 52.5 82.0 86.3"),
            ("DL-CRH", AGGREGATED["DL-CRH"], "90.4 90.4 39.8 77.1 84.3 54.4 82.7 85.0"),
            ("AggNet", 'kind = "agg_net"', "91.6 89.6 82.3 88.9 84.8 86.0 83.8 87.0"),
            ("CrowdLayer", 'kind = "crowd_layer"', "89.6 90.6 80.6 84.0 81.5 82.6 80.6 82.7"),
            ("MBEM", 'kind = "mbem"', "91.0 90.7 80.1 87.8 84.2 86.0 83.4 85.6"),
            ("Max-MIG", 'kind = "max_mig"', "90.5 90.3 83.6 88.1 84.3 86.5 83.6 85.6"),
            ("CVL", 'kind = "cvl"', "89.6 89.3 79.3 84.4 84.3 85.9 84.5 86.6"),
        )
    ),
    *(
        (f"{name}+I+F", f"{lines}\ninit_from_gold = true\n{TUNED}", True, "cor", papers)
        for name, lines, papers in (
            ("AggNet", 'kind = "agg_net"', "84.4 86.4 84.3 87.0"),
            ("CrowdLayer", 'kind = "crowd_layer"', "80.2 82.6 69.8 82.6"),
            ("Max-MIG", 'kind = "max_mig"', "84.3 86.2 83.4 86.2"),
            ("CVL", 'kind = "cvl"', "84.3 86.4 84.8 86.5"),
        )
    ),
]
MODELS = [
    ("DL-MV", 'kind = "dl"', False, "ind cor", "71.8 52.2 44.7 68.9 83.8 58.7 84.3 85.3"),
    ("DL-DS", AGGREGATED["DL-DS"], False, "ind cor", "89.9 80.9 62.0 83.4 84.0 46.5 82.1 86.2"),
    ("DL-IBCC", AGGREGATED["DL-IBCC"], False, "ind cor", "90.4 77.1 50.4 84.1 84.3 45.2 82.0 86.3"),
    ("DL-CRH", AGGREGATED["DL-CRH"], False, "ind cor", "86.8 88.2 37.7 76.8 84.3 47.0 82.6 85.0"),
    ("AggNet", 'kind = "agg_net"', False, "ind cor", "91.4 88.8 82.2 88.8 84.8 85.8 83.5 86.9"),
    ("CrowdLayer", 'kind = "crowd_layer"', False, "ind cor", "89.3 88.4 80.3 84.0 81.4 82.4 80.4 82.7"),
    ("MBEM", 'kind = "mbem"', False, "ind cor", "90.9 89.8 79.6 87.6 84.2 85.9 83.4 85.4"),
    ("Max-MIG", 'kind = "max_mig"', False, "ind cor", "90.3 88.6 83.5 88.0 84.3 86.4 83.5 85.6"),
    ("CVL", 'kind = "cvl"', True, "ind cor", "88.7 86.9 76.1 84.4 84.0 85.7 84.3 86.6"),
    *AFTER_TRAINING,
    ("TCL", 'kind = "tcl"', True, "ind cor", "92.5 92.9 86.8 91.2 84.9 87.4 83.7 87.5"),
    ("TCL+I", 'kind = "tcl"\ninitialise = "trusted"', True, "cor", "84.3 90.4 83.8 88.5"),
    ("TCLS", 'kind = "tcls"\ninitialise = "trusted"', True, "cor", "90.6 93.1 93.1 91.6"),
    ("TCLS, votes first", 'kind = "tcls"', True, "cor", ""),
]


def accuracy(lab: Lab, shown: Pictures, name: str, size: int, model: str, is_trusted: bool, seed: int) -> Measured:
    crowd = lab.simulate(f"tcl-{name}", {"trusted": size / shown.count}, seed, truth=shown.truth)
    trusted = f"SELECT instance_id, class, role FROM g {'' if is_trusted else 'WHERE false'}"
    gold = f"{trusted} UNION ALL SELECT instance_id, class, role FROM h WHERE role = 'holdout'"
    source = {
        "annotations": crowd / "annotations", "features": shown.features, "columns.features": "pixels",
        "gold": lab.copy(gold, crowd.parent / "gold.parquet", g=crowd / "gold", h=shown.held),
    }  # fmt: skip
    with lab.fit(source, network(model, shown.backbone, EPOCHS), seed) as run:
        return (lab.accuracy(run),)


def tcl(lab: Lab) -> str:
    shown = pictures(lab, 6)
    models = [row for row in MODELS if row[1].split('"')[1] in lab.kinds]
    waits = []
    for title, model, is_trusted, groups, papers in models:
        names = [name for name in SETS if name.split("-")[0] in groups]
        papers = papers.split() or [""] * len(names)
        start = {
            name: lab.cell(f"{title} on {name}", partial(accuracy, lab, shown, name, TRUSTED, model, is_trusted), paper)
            for name, paper in zip(names, papers)
        }
        waits.append((title, start))
    sizes = SIZES[::2] if lab.quick else SIZES
    by_size = [
        [lab.cell(f"{name} with {size}", partial(accuracy, lab, shown, name, size, model, True)) for size in sizes]
        for name, model in (("ind-3", 'kind = "tcl"'), ("cor-2", 'kind = "tcls"\ninitialise = "trusted"'))
    ]
    rows = [[title, *(start[name]() if name in start else "" for name in SETS)] for title, start in waits]
    sweep = [[row, *(wait() for wait in own)] for row, own in zip(("TCL on IND-3", "TCLS on COR-2"), by_size)]
    return f"""## TCL: sparse and complete crowds

{shown.about()}. Accuracy on the test pictures: means over
{lab.draws} draws and half of their 95 % intervals, then the paper's figure, which is of CIFAR-10 with VGG-16 and comparable in
order only. {TRUSTED} of the pictures are trusted, for the kinds that read gold: TCL, TCLS, CVL, and those with +F and +I; the others
have no gold. With +F (`fine_tune`, `hold_back_gold`) the classifier learns from them after the training, with +I (`init_from_gold`) the
fit starts at their matrices too. All have one hidden layer of 128, {EPOCHS} epochs, and for TCL and TCLS their own rounds before. In IND
three of thirty annotators label a picture, in COR all five do, three of whom copy, support or oppose another.

{table(["", *(name.upper() for name in SETS)], rows)}
By the number of trusted pictures:

{table(["", *map(str, sizes)], sweep)}{lab.footnotes()}"""
