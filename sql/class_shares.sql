-- How frequent each class is: among the labels, and in expectation over the posteriors, which is the better estimate
-- where labels are uncertain.
--   class             the class
--   n_labels          how many instances have it as their label
--   label_share       their share of all labels
--   expected_share    its mean posterior probability
--   prior             the class prior of the model; null where it has none
with
counts as (
    select question, label as class, count(*) as n_labels
    from labels
    where label is not null
    group by question, label
),

totals as (
    select question, count(label) as n_labels from labels group by question
),

expected as (
    select question, class, avg(probability) as expected_share
    from posteriors
    group by question, class
)

select
    c.question,
    c.class,
    coalesce(n.n_labels, 0) as n_labels,
    cast(coalesce(n.n_labels, 0) as double) / t.n_labels as label_share,
    e.expected_share,
    c.prior
from classes as c
inner join totals as t on c.question = t.question
left join counts as n on c.question = n.question and c.class = n.class
left join expected as e on c.question = e.question and c.class = e.class
order by c.question, c.index
