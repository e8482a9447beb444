-- Annotators, the least surely skilled first: by the lower end of the skill's interval, or by the skill where the model
-- has no interval. The first rows are whom to retrain or to leave out; few annotations mean that little is known of them.
--   annotator_id    the annotator
--   n_annotations   how many annotations were used
--   skill           the skill, from 0 to 1
--   skill_low       the lower end of its interval; null where the model has none
--   skill_high      the upper end
-- $n = 1000: how many rows
select question, annotator_id, n_annotations, skill, skill_low, skill_high
from annotators
order by question, coalesce(skill_low, skill), n_annotations desc, annotator_id
limit $n
