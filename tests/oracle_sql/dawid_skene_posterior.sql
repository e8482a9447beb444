-- P(class given the annotations of the instance): softmax of the summed logarithms (Dawid and Skene 1979, eq. 2.5).
with
scores as (
    select
        a.instance_id,
        c.class,
        first_value(ln(q.prior)) + sum(ln(c.probability)) as score
    from annotations as a
    inner join confusion as c on a.annotator_id = c.annotator_id and a.label = c.label
    inner join prior as q on c.class = q.class
    group by a.instance_id, c.class
),

shifted as (
    select
        instance_id,
        class,
        exp(score - max(score) over (partition by instance_id)) as likelihood
    from scores
)

select
    instance_id,
    class,
    likelihood / sum(likelihood) over (partition by instance_id) as probability
from shifted
