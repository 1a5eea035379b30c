-- What turns used, summed up by hour and by day. A follower of the log writes it; its position is in
-- `cursors`. Neither erasing nor retention changes a sum.

create table usage_sums (
  seconds {int} not null,
  start {int} not null,
  tenant {text} not null,
  model {text} not null,
  turns {int} not null,
  completed {int} not null,
  failed {int} not null,
  cancelled {int} not null,
  interrupted {int} not null,
  runs {int} not null,
  heals {int} not null,
  input_tokens {int} not null,
  cached_tokens {int} not null,
  output_tokens {int} not null,
  reasoning_tokens {int} not null,
  longest_ms {int} not null,
  latencies {blob} not null,
  primary key (seconds, start, tenant, model)
){without_rowid};
