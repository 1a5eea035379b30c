-- When a worker that was declared dead may have lived last, and how many runs it had then. A turn is
-- given up for deaths that it may have caused.

alter table workers add column died_at {real};
alter table workers add column running {int};
