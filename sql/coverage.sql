-- How many annotations instances have, and what became of them: where one annotation more would help.
--   n_annotations   the number of annotations of an instance
--   n_instances     how many instances have so many
--   share           their share of all instances
--   confidence      their mean confidence; null where none has evidence
--   tied            how many are tied
--   abstained       how many have no label
with
totals as (
    select question, count(*) as n from labels group by question
)

select
    l.question,
    l.n_annotations,
    count(*) as n_instances,
    cast(count(*) as double) / max(t.n) as share,
    avg(l.confidence) as confidence,
    count(*) filter (where l.decision = 'tied') as tied,
    count(*) filter (where l.decision = 'abstained') as abstained
from labels as l
inner join totals as t on l.question = t.question
group by l.question, l.n_annotations
order by l.question, l.n_annotations
