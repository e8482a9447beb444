-- How far estimated confusion matrices are from the true ones (Tanno 2019): the squared Frobenius distance, averaged
-- over the annotators of both tables and divided by the number of classes. A cell that is absent counts as zero.
with
estimated as (
    select annotator_id, class, label, probability from confusion_matrices where scope = 'annotator'
),

shared as (
    select distinct t.annotator_id
    from true_confusion as t
    inner join estimated as e on t.annotator_id = e.annotator_id
),

cells as (
    select
        coalesce(t.annotator_id, e.annotator_id) as annotator_id,
        coalesce(t.probability, 0.0) - coalesce(e.probability, 0.0) as gap
    from true_confusion as t
    full outer join estimated as e
        on t.annotator_id = e.annotator_id and t.class = e.class and t.label = e.label
)

select
    sum(gap * gap)
    / ((select count(*) from shared) * (select count(*) from classes)) as confusion_error
from cells
where annotator_id in (select annotator_id from shared)
