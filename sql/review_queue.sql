-- Instances to look at again, the least certain first: one without a label, then the smallest margin between the two
-- most probable classes. Gold is left out.
--   instance_id     the instance
--   label           the label of the run
--   confidence      its probability
--   second          the next most probable class
--   margin          the difference of the two probabilities
--   n_annotations   how many annotations were used
--   decision        decided, tied or abstained
-- $n = 50: how many rows
with
ranked as (
    select
        question,
        instance_id,
        class,
        row_number() over (
            partition by question, instance_id order by probability desc, class
        ) as rank
    from posteriors
)

select l.question, l.instance_id, l.label, l.confidence, r.class as second, l.margin, l.n_annotations, l.decision
from labels as l
left join ranked as r
    on l.question = r.question and l.instance_id = r.instance_id and r.rank = 2
where l.decision <> 'gold'
order by l.margin nulls first, l.n_annotations, l.question, l.instance_id
limit $n
