-- The work of each annotator by week, and how often it agrees with the labels of the run: whose quality falls, and when.
--   week            the Monday of the week
--   annotator_id    the annotator
--   n_annotations   how many annotations
--   agreement       the share of these that equal the label; null where no instance has one
select
    a.question,
    date_trunc('week', a.annotated_at) as week,
    a.annotator_id,
    count(*) as n_annotations,
    avg(case when l.label is null then null when a.label = l.label then 1.0 else 0.0 end) as agreement
from annotations as a
left join labels as l on a.question = l.question and a.instance_id = l.instance_id
where a.label is not null
group by a.question, date_trunc('week', a.annotated_at), a.annotator_id
order by a.question, week, a.annotator_id
