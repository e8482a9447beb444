-- Pairs of annotators who agree far more than their confusion matrices explain: copies, one person with two accounts,
-- judges of one model family. Their votes count almost twice.
--   annotator_id    one annotator
--   other_id        the other one
--   n               how many instances both annotated
--   agreement       the share of these with equal labels
--   excess          the agreement beyond what their matrices explain
-- $min_n = 10: the fewest instances in common
-- $min_excess = 0.1: the smallest excess
select question, annotator_id, other_id, n, agreement, excess
from annotator_pairs
where n >= $min_n and excess >= $min_excess
order by excess desc, n desc, question, annotator_id, other_id
