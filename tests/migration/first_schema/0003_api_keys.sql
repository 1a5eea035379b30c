-- API keys, as hashes. A revoked key keeps its row: that there was one keeps the door locked.

create table api_keys (
  id {text} primary key,
  tenant {text} not null,
  name {text} not null,
  hash {blob} not null,
  is_admin {int} not null,
  created_at {real} not null,
  revoked_at {real}
){without_rowid};

create unique index api_keys_hash on api_keys (hash);

-- A tenant's open turns, for the bound on them.
create index turns_tenant on turns (tenant) where outcome is null;
