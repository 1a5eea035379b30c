-- The index also has the words of keys. The follower of the log builds it again, in the background.

{search_dropped};
drop table search_items;

create table search_items (
  id {int} primary key,
  pos {int} not null,
  back {int} not null,
  terms {terms} not null
);

create index search_items_pos on search_items (pos);
{search_index};
{search_added};
{search_removed};

delete from search_blocks;
update cursors set txid = 0, pos = 0, last_id = 0 where view = 'search';
