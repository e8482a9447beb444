-- Pairs of classes that annotators confuse, the most frequent confusion first: from the annotators' confusion matrices,
-- weighted with their expected counts.
--   class             the true class
--   label             the label given instead
--   expected_count    the expected number of such annotations
--   share             their share of all annotations of instances of that class
--   n_annotators      how many annotators contribute at least half an annotation
-- $n = 50: how many rows
with
cells as (
    select
        question,
        class,
        label,
        sum(expected_count) as expected_count,
        count(*) filter (where expected_count >= 0.5) as n_annotators
    from confusion_matrices
    where scope = 'annotator'
    group by question, class, label
),

totals as (
    select question, class, sum(expected_count) as total from cells group by question, class
)

select c.question, c.class, c.label, c.expected_count, c.expected_count / t.total as share, c.n_annotators
from cells as c
inner join totals as t on c.question = t.question and c.class = t.class
where c.class <> c.label and c.expected_count > 0
order by c.expected_count desc, c.question, c.class, c.label
limit $n
