-- The questions that a run answered, in order.
select distinct question from labels order by question
