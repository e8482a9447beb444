-- How well pairs of annotators agree beyond chance, the worst first. In a run with more than 10 000 pairs, these are the pairs
-- that agree most beyond their skills: the worst pairs of all are not among them.
--   annotator_id    one annotator
--   other_id        the other one
--   n               how many common instances were compared; in a large run a sample of all
--   agreement       the share of these with equal labels
--   kappa           Cohen's kappa: agreement beyond that of independent draws from the labels of each; 1 is perfect
-- $min_n = 10: the fewest instances in common
-- $n = 100: how many rows
select question, annotator_id, other_id, n, agreement, kappa
from annotator_pairs
where n >= $min_n
order by kappa nulls last, n desc, question, annotator_id, other_id
limit $n
