"""Noise that annotators share, as in CoNAL (Chu et al. 2021)."""

from functools import partial

from .lab import Lab, Measured, network, table

EPOCHS = 30
BACKBONE = "{ hidden = [128], dropout = 0.5 }"
# (row, lines of [model], the paper's accuracy on Music)
MODELS = [
    ("DL-MV", 'kind = "dl"', "72.5"),
    ("DL-CL", 'kind = "crowd_layer"', "81.5"),
    ("DoctorNet", 'kind = "doctor_net"', "76.6"),
    ("Anno-Reg", 'kind = "trace_regularised"', "79.1"),
    ("Max-MIG", 'kind = "max_mig"', "81.4"),
    ("DL-GLAD", 'kind = "dl"\naggregator = { kind = "glad" }', "77.8"),
    ("DL-WC", 'kind = "dl"\naggregator = { kind = "worker_clustering" }', "75.8"),
    ("AggNet", 'kind = "agg_net"', "81.9"),
    ("CoNAL", 'kind = "conal"', "84.1"),
    ("CoNAL-EM", 'kind = "conal_em_net"', ""),
]
# With the lambda of the sweep, the paper's accuracies on LabelMe and Music.
LAMBDAS = [("0.0", "85.7", "82.1"), ("1e-4", "86.6", "83.5"), ("1e-5", "87.1", "84.1"), ("1e-6", "86.3", "83.0")]
STRENGTHS = [(strength, 0.5) for strength in (0.4, 0.5, 0.6, 0.7, 0.8)]
PROPORTIONS = [(0.4, proportion) for proportion in (0.0, 0.3, 0.7)]
COMMON_ERROR = """
SELECT 100.0 * sum(power(own.probability - t.probability, 2)) / count(DISTINCT t.class) AS error
FROM t JOIN confusion_matrices own ON own.class = t.class AND own.label = t.label WHERE own.scope = 'common'"""


def synthetic(lab: Lab, model: str, individual: float, strength: float, proportion: float, seed: int) -> Measured:
    """The accuracy on the test instances, and of kinds that have a common matrix its squared error by class."""
    settings = {"common_strength": strength, "proportion": proportion, "individual_strength": individual}
    crowd = lab.simulate("conal-synthetic", settings, seed)
    source = {name: crowd / name for name in ("annotations", "features", "gold")}
    with lab.fit(source, network(model, BACKBONE, EPOCHS, "valid"), seed) as run:
        has_common = '"conal' in model and proportion > 0
        error = lab.rows(COMMON_ERROR, run, t=crowd / "common_confusion")[0]["error"] if has_common else None
        return lab.accuracy(run), error


def real(lab: Lab, name: str, model: str, seed: int) -> Measured:
    folder = lab.data / name
    source = {
        "annotations": folder / "annotations.parquet", "features": folder / "features.parquet",
        "gold": folder / "truth.parquet",
        "sql.gold": "SELECT instance_id, label AS class, 'holdout' AS role FROM gold WHERE split = 'test'",
    }  # fmt: skip
    with lab.fit(source, model, seed) as run:
        return (lab.accuracy(run),)


def conal(lab: Lab) -> str:
    settings = [(own, *common) for own in ((0.7,) if lab.quick else (0.7, 0.3)) for common in STRENGTHS + PROPORTIONS]
    waits = [
        [lab.cell(title, partial(synthetic, lab, model, *setting)) for title, model, _ in MODELS] for setting in settings
    ]
    lambdas = [
        [
            lab.cell(f"lambda {value}", partial(real, lab, name, f'kind = "conal"\nlambda = {value}'), papers[at])
            for value, *papers in LAMBDAS
        ]
        for at, name in enumerate(("labelme", "music"))
    ]
    music = [lab.cell(title, partial(real, lab, "music", model), paper) for title, model, paper in MODELS]
    rows = [[*map(str, setting), *(wait() for wait in own)] for setting, own in zip(settings, waits)]
    head = ["individual", "common", "share", *(title for title, *_ in MODELS)]
    sweep = [[name, *(wait() for wait in own)] for name, own in zip(("LabelMe", "Music"), lambdas)]
    return f"""## CoNAL: noise that annotators share

Synthetic data: 10 000 instances of 6 classes in 32 dimensions, 8 000 of them with labels of 3 of 30 annotators. `individual` and
`common` are the shares of a class that the annotator's own matrix, and the common one, give to one other class; `share` is
the mean share of annotations that follow the common matrix. The paper says 0.7 for individual noise, and calls such annotators
good: 0.3 is beside it, but in a quick run. Accuracy of the classifier on 1 000 test instances, of the epoch that 1 000 others
choose: means over {lab.draws} draws and half of their 95 % intervals; the paper has curves only. After a semicolon, the squared error
of the common matrix, divided by the number of classes, times 100.

{table(head, rows)}
Music, test clips, our defaults without gold, and the paper's figures; LabelMe is in its own table:

{table([title for title, *_ in MODELS], [[wait() for wait in music]])}
The weight lambda of the distance between matrices, our defaults without gold, and the paper's figures:

{table(["", *(value for value, *_ in LAMBDAS)], sweep)}{lab.footnotes()}"""
