-- Lists of forks and of retired sessions are read in the order of an index. A live session that is
-- no fork has no row in any of these.

drop index sessions_parent;
create index sessions_parent on sessions (parent_id, deleted_at, is_visible, id)
  where parent_id is not null;
create index sessions_retired on sessions (tenant, id)
  where is_live = 0 and is_visible = 1 and deleted_at is null;
create index sessions_retired_at on sessions (tenant, retired_at, no)
  where is_live = 0 and is_visible = 1 and deleted_at is null;
