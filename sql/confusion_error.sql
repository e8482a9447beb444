-- The distance of the confusion matrices `estimated` from the `known` ones, for the annotators that both have:
--   confusion_error             the squared distance of a row, averaged over an annotator's rows, then over annotators;
--                               with whole matrices that is the squared Frobenius distance by the number of classes
--                               (Tanno et al. 2019, arXiv:1902.03680)
--   confusion_frobenius         the Frobenius distance, averaged over annotators
--   confusion_total_variation   half the sum of a row's absolute differences, averaged like confusion_error
--   confusion_error_observed    confusion_error over the rows of classes that the annotator observed: those with an
--                               expected count of at least `$min_observed_count`
-- A row that either side lacks is not compared: it is unknown, not zero. The Frobenius distance of its annotator then
-- assumes that such rows are as far off as the annotator's other rows on average. In a row that both sides have,
-- estimated cells that are left out share the probability that is missing to 1; known cells that are left out are zero.
with
labels as (
    select label from known
    union
    select label from estimated
),

estimated_rows as (
    select
        annotator_id,
        class,
        count(*) as n_cells,
        greatest(1.0 - sum(probability), 0.0) as rest,
        sum(expected_count) >= $min_observed_count as is_observed
    from estimated
    group by annotator_id, class
),

known_rows as (
    select distinct annotator_id, class from known
),

compared as (
    select e.annotator_id, e.class, e.is_observed, e.rest, e.n_cells, l.label
    from estimated_rows as e
    inner join known_rows as k on e.annotator_id = k.annotator_id and e.class = k.class
    cross join labels as l
),

gaps as (
    select
        c.annotator_id,
        c.class,
        c.is_observed,
        coalesce(k.probability, 0.0)
        - coalesce(e.probability, c.rest / ((select count(*) from labels) - c.n_cells)) as gap
    from compared as c
    left join known as k
        on c.annotator_id = k.annotator_id and c.class = k.class and c.label = k.label
    left join estimated as e
        on c.annotator_id = e.annotator_id and c.class = e.class and c.label = e.label
),

matrix_rows as (
    select
        annotator_id,
        class,
        is_observed,
        sum(gap * gap) as squared,
        sum(abs(gap)) / 2 as variation
    from gaps
    group by annotator_id, class, is_observed
),

matrices as (
    select
        annotator_id,
        avg(squared) as squared,
        avg(variation) as variation,
        avg(case when is_observed then squared end) as squared_met
    from matrix_rows
    group by annotator_id
)

select
    avg(squared) as confusion_error,
    avg(sqrt($classes * squared)) as confusion_frobenius,
    avg(variation) as confusion_total_variation,
    avg(squared_met) as confusion_error_observed
from matrices
