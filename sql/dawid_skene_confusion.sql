-- P(label given class) of every annotator: expected counts over their row sums (Dawid and Skene 1979, eq. 2.3).
with
counts as (
    select
        a.annotator_id,
        p.class,
        a.label,
        sum(p.probability) as expected_count
    from annotations as a
    inner join posterior as p on a.instance_id = p.instance_id
    group by a.annotator_id, p.class, a.label
)

select
    annotator_id,
    class,
    label,
    case
        when sum(expected_count) over (partition by annotator_id, class) > 0.0
            then greatest(expected_count / sum(expected_count) over (partition by annotator_id, class), 1e-10)
        else 1.0 / (select count(*) from prior)
    end as probability
from counts
