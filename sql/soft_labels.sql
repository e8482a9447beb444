-- Soft labels for training: one row an instance, one column a class, each row summing to 1. Instances without evidence
-- are left out.
--   instance_id     the instance
--   CLASS           its posterior probability: one such column for each class
-- $class: the line below is repeated for each class
select
    question,
    instance_id
    , max(probability) filter (where cast(class as varchar) = '$class') as "$class"
from posteriors
group by question, instance_id
order by question, instance_id
