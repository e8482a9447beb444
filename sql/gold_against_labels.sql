-- Gold against the posteriors: how often each true class became each label. Gold that trains is its own label, so only
-- gold of other roles tells how good the labels are.
--   role            the role of the gold
--   class           the gold class
--   label           the label of the run; null where it abstained
--   n               how many instances
--   confidence      their mean confidence
select
    g.question,
    coalesce(g.role, 'train') as role,
    g.class,
    l.label,
    count(*) as n,
    avg(l.confidence) as confidence
from gold as g
inner join labels as l on g.question = l.question and g.instance_id = l.instance_id
group by g.question, coalesce(g.role, 'train'), g.class, l.label
order by g.question, role, g.class, l.label
