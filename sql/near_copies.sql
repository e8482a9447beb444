-- Pairs of annotators who nearly always give the same label: copies, one person with two accounts, judges of one model
-- family. Their votes count almost twice. Two good annotators agree often too: the excess tells them apart.
--   annotator_id    one annotator
--   other_id        the other one
--   n               how many common instances were compared; in a large run a sample of all
--   agreement       the share of these with equal labels
--   kappa           the agreement beyond that of independent draws from the labels of each
--   excess          the agreement beyond what their confusion matrices explain
-- $min_n = 20: the fewest instances in common
-- $min_agreement = 0.95: the smallest agreement
select question, annotator_id, other_id, n, agreement, kappa, excess
from annotator_pairs
where n >= $min_n and agreement >= $min_agreement
order by excess desc, n desc, question, annotator_id, other_id
