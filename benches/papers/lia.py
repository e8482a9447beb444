"""LIA, table 2 (Platanios et al. 2020): accuracy by redundancy."""

import random
import statistics
from concurrent.futures import Future
from pathlib import Path

from .lab import Lab, Refused, figure, table, write_csv

# (column, the lines of [model], whether it reads features)
COLUMNS = [
    ("MAJ", 'kind = "majority_vote"', False),
    ("MAJ*", 'kind = "dl"', True),
    ("MAJ*-E", 'kind = "dl"\nembed_instances = true', False),
    ("DS", 'kind = "dawid_skene"', False),
    ("MMCE", 'kind = "mmce"', False),
    ("MMCE*", 'kind = "dl"\naggregator = { kind = "mmce" }', True),
    ("MMCE*-E", 'kind = "dl"\nembed_instances = true\naggregator = { kind = "mmce" }', False),
    ("Snorkel", 'kind = "snorkel"', False),
    ("MeTaL", 'kind = "label_model"', False),
    ("LIA-E", 'kind = "lia"\nembed_instances = true', False),
    ("LIA", 'kind = "lia"', True),
    ("LIA-ML", 'kind = "lia_multi"', True),
]
MEDICAL = ("medrel_cause", "medrel_treat")
ALL = 1_000_000
SETS = {"bluebirds": (2, 5, 10, 20, ALL), "rte": (2, 5, 10), **{name: (2, 5, 10, ALL) for name in MEDICAL}}
PAPER = {
    "bluebirds": {
        "MAJ": "63.9 71.1 74.4 76.4 75.9", "MAJ*-E": "64.4 70.9 75.9 76.2 78.4",
        "MMCE": "66.9 73.9 76.5 78.5 79.6", "MMCE*-E": "63.2 74.2 76.9 77.7 78.8",
        "Snorkel": "63.8 72.4 76.0 76.0 76.0", "MeTaL": "63.0 71.5 83.0 87.0 89.0", "LIA-E": "65.1 73.0 78.1 77.2 78.9",
    },
    "rte": {
        "MAJ": "72.8 84.8 90.0", "MAJ*": "74.5 84.8 89.9", "MAJ*-E": "72.8 84.0 90.4",
        "MMCE": "75.3 88.5 92.7", "MMCE*": "73.2 85.3 87.1", "MMCE*-E": "77.3 88.9 92.7",
        "Snorkel": "65.2 79.1 90.0", "MeTaL": "61.0 72.4 78.0", "LIA-E": "76.7 84.3 91.6", "LIA": "78.0 89.1 93.1",
    },
}  # fmt: skip


def at_most(rows: list[tuple], redundancy: int, seed: int) -> list[tuple]:
    """At most so many annotations of each instance, drawn without replacement."""
    of_instance: dict[str, list[tuple]] = {}
    for row in rows:
        of_instance.setdefault(row[0], []).append(row)
    rng = random.Random(f"{seed} {redundancy}")
    return [row for own in of_instance.values() for row in rng.sample(own, min(redundancy, len(own)))]


def source(lab: Lab, annotations: Path, header: list[str], features: str | None) -> dict[str, object]:
    # Ids that look like numbers are text in some sets, and numbers in a CSV file: a text operator makes them text.
    text = [f"{name} || '' AS {name}" if name in ("instance_id", "annotator_id") else name for name in header]
    relations: dict[str, object] = {
        "annotations": annotations, "sql.annotations": f"SELECT {', '.join(text)} FROM annotations",
    }  # fmt: skip
    if features:
        relations["features"] = lab.data / features / "features.parquet"
        relations["sql.features"] = "SELECT instance_id || '' AS instance_id, features FROM features"
    return relations


def accuracy(lab: Lab, run: Path, title: str, name: str, where: str = "true") -> float:
    truth = lab.data / name / "truth.parquet"
    if title == "MAJ":
        return 100 * lab.scores(run, truth)["accuracy_expected_ties"]
    if title.endswith("*"):
        return 100 * lab.scores(run, truth)["prediction_accuracy"]
    # A label that is missing is wrong.
    query = (
        "SELECT avg(CASE WHEN l.label = t.label THEN 1.0 ELSE 0.0 END) AS accuracy "
        f"FROM labels l JOIN t ON l.instance_id = t.instance_id WHERE {where}"
    )
    return 100 * lab.rows(query, run, t=truth)[0]["accuracy"]


def of_column(lab: Lab, column: tuple, drawn: dict[str, list[tuple]], seed: int) -> dict[str, float]:
    """The accuracy on each data set of one fit to all of `drawn`, which are questions if there are several."""
    title, model, has_features = column
    several = len(drawn) > 1
    header = ["instance_id", "annotator_id", "label", *(["question"] if several else [])]
    rows = [(*row, name) if several else row for name, own in drawn.items() for row in own]
    annotations = write_csv(lab.folder() / "annotations.csv", header, rows)
    relations = source(lab, annotations, header, min(drawn) if has_features else None)
    with lab.fit(relations, model, seed) as run:
        return {name: accuracy(lab, run, title, name, f"question = '{name}'" if several else "true") for name in drawn}


def oracles(lab: Lab, name: str) -> str:
    """Where an always-right and an always-wrong annotator come out among the others."""
    files = {"truth": lab.data / name / "truth.parquet", "annotations": lab.data / name / "annotations.parquet"}
    crowd = lab.simulate("real", {"added": "right, wrong"}, 1, **files)
    relations: dict[str, object] = {"annotations": crowd / "annotations"}
    if (lab.data / name / "features.parquet").exists():
        relations["features"] = lab.data / name / "features.parquet"
    query = (
        "SELECT t.type, a.place, a.of_all FROM t JOIN (SELECT annotator_id, count(*) OVER () AS of_all, "
        "rank() OVER (ORDER BY skill DESC) AS place FROM annotators) a ON a.annotator_id = t.annotator_id "
        "WHERE t.type IN ('right', 'wrong') ORDER BY t.type"
    )
    with lab.fit(relations, 'kind = "lia"', 1) as run:
        places = {row["type"]: row for row in lab.rows(query, run, t=crowd / "annotators")}
    right, wrong = places["right"], places["wrong"]
    return f"{name} {right['place']} and {wrong['place']} of {wrong['of_all']}"


def lia(lab: Lab) -> str:
    read = "SELECT instance_id, annotator_id, label FROM a"
    crowd = {name: [tuple(row.values()) for row in lab.rows(read, a=lab.data / name / "annotations.parquet")] for name in SETS}
    columns = [column for column in COLUMNS if column[1].split('"')[1] in lab.kinds]
    fits: dict[tuple, list[Future]] = {}
    for name, redundancies in SETS.items():
        for redundancy in redundancies:
            for column in columns:
                title, _, has_features = column
                names = MEDICAL if title == "LIA-ML" else (name,)
                if name not in names or (has_features and not (lab.data / name / "features.parquet").exists()):
                    continue
                key = (title, names, redundancy)
                if key not in fits:
                    drawn = [{n: at_most(crowd[n], redundancy, seed) for n in names} for seed in range(lab.draws)]
                    fits[key] = [lab.pool.submit(of_column, lab, column, d, seed) for seed, d in enumerate(drawn)]
    rows, means = [], {}
    for name, redundancies in SETS.items():
        for at, redundancy in enumerate(redundancies):
            cells = []
            for title, *_ in columns:
                futures = fits.get((title, (name,), redundancy)) or fits.get((title, MEDICAL, redundancy))
                if futures is None or name not in (MEDICAL if title == "LIA-ML" else (name,)):
                    cells.append("")
                    continue
                paper = PAPER.get(name, {}).get(title, "").split()
                try:
                    values = [future.result()[name] for future in futures]
                    means[title, name, redundancy] = statistics.mean(values)
                    cells.append(figure(values, paper[at] if paper else ""))
                except Refused as error:
                    lab.failures.setdefault(str(error), []).append(f"{title} on {name}")
                    cells.append("refused")
            rows.append([name, "all" if redundancy == ALL else str(redundancy), *cells])
    text = f"""## LIA, table 2: accuracy by redundancy

At most so many annotations of each instance, {lab.draws} draws (the paper has 50); mean and half of its 95 % interval in percent,
then the paper's mean in brackets. The paper's medical figures are of a task with 14 classes, which its program does not have:
they are left out. LIA-E, MAJ*-E and MMCE*-E learn embeddings of the instances, without features; bluebirds has no features. Of
the columns with a star the classifier is scored, of the others the labels of annotated instances. LIA-ML is one fit to both
medical relations.

"""
    text += table(["data", "at most", *(title for title, *_ in columns)], rows)
    text += lab.footnotes() + "\n" + summary(means)
    if not lab.quick:
        found = lab.pool.map(lambda name: oracles(lab, name), SETS)
        text += "Places by skill of an always-right and of an always-wrong annotator who are added to all annotations: "
        text += f"{', '.join(found)}.\n"
    return text


def summary(means: dict[tuple, float]) -> str:
    """Where LIA is below the vote, and LIA-ML against LIA."""
    below = [
        f"{title} on {name} at {'all' if redundancy == ALL else redundancy} ({mean:.1f}, vote {means['MAJ', name, redundancy]:.1f})"
        for (title, name, redundancy), mean in means.items()
        if title.startswith("LIA") and mean < means["MAJ", name, redundancy]
    ]
    text = f"Below the majority vote: {'; '.join(below) or 'nothing'}.\n"
    pairs = [
        tuple(statistics.mean(means[title, name, redundancy] for name in MEDICAL) for title in ("LIA", "LIA-ML"))
        for redundancy in SETS[MEDICAL[0]]
        if all((title, name, redundancy) in means for title in ("LIA", "LIA-ML") for name in MEDICAL)
    ]
    if pairs:
        shown = ", ".join(f"{multi:.1f} ({own:.1f})" for own, multi in pairs)
        text += f"Mean of the two relations by LIA-ML, and by LIA in brackets, from the lowest redundancy to all: {shown}.\n"
    return text
