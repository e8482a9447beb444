-- Instances that split the crowd: the share of the most frequent label among the instance's annotations is smallest.
--   instance_id     the instance
--   n_annotations   how many annotations it has
--   top_share       the share of its most frequent label
--   n_labels        how many different labels it has
--   label           the label of the run
--   confidence      its probability
-- $n = 50: how many rows
with
votes as (
    select question, instance_id, label, count(*) as votes
    from annotations
    where label is not null
    group by question, instance_id, label
),

shares as (
    select
        question,
        instance_id,
        sum(votes) as n_annotations,
        cast(max(votes) as double) / sum(votes) as top_share,
        count(*) as n_labels
    from votes
    group by question, instance_id
)

select s.question, s.instance_id, s.n_annotations, s.top_share, s.n_labels, l.label, l.confidence
from shares as s
inner join labels as l on s.question = l.question and s.instance_id = l.instance_id
where s.n_annotations > 1
order by s.top_share, s.n_annotations desc, s.question, s.instance_id
limit $n
