-- P(label given class) of every annotator for the labels that were used: expected counts, floored, over their row sums
-- (Dawid and Skene 1979, eq. 2.3). A label that was not used has the floor and no row.
with
counts as (
    select
        a.annotator_id,
        p.class,
        a.label,
        greatest(sum(p.probability), 1e-10) as expected_count
    from annotations as a
    inner join posterior as p on a.instance_id = p.instance_id
    group by a.annotator_id, p.class, a.label
),

totals as (
    select
        annotator_id,
        class,
        sum(expected_count) + 1e-10 * ((select count(*) from prior) - count(*)) as total
    from counts
    group by annotator_id, class
)

select
    c.annotator_id,
    c.class,
    c.label,
    c.expected_count / t.total as probability
from counts as c
inner join totals as t on c.annotator_id = t.annotator_id and c.class = t.class
