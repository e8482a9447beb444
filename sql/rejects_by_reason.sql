-- Rows that could not be used, by reason, the most frequent first.
--   reason          why a row was rejected
--   count           how many rows
--   share           their share of all rows that were read
--   values          up to five of the offending values
select
    r.question,
    r.reason,
    r.count,
    cast(r.count as double) / u.rows_read as share,
    r.values
from rejects as r
cross join run as u
order by r.count desc, r.question, r.reason
