-- The prior of each class: the mean posterior over instances (Dawid and Skene 1979, eq. 2.4).
with
instances as (
    select count(distinct instance_id) as n from posterior
)

select
    class,
    greatest(sum(probability) / (select n from instances), 1e-10) as prior
from posterior
group by class
