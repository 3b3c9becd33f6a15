// The pool of KV blocks: states, reference counts, order of eviction, misuse.
#include "kv/block_pool.h"

#include <vector>

#include "base/error.h"
#include "check.h"

using qwen3::BlockId;
using qwen3::BlockPool;
using qwen3::Error;
using qwen3::kNoBlock;

TEST("block pool: hands out every block once, then none") {
  BlockPool pool(3);
  std::vector<char> seen(3, 0);
  for (int i = 0; i < 3; i++) {
    const BlockId block = pool.allocate();
    REQUIRE(block >= 0 && block < 3);
    CHECK_EQ(static_cast<int>(seen[static_cast<size_t>(block)]++), 0);
    CHECK_EQ(pool.references(block), 1);
  }
  CHECK_EQ(pool.allocate(), kNoBlock);
  CHECK_EQ(pool.n_used(), 3);
  CHECK_EQ(pool.n_available(), 0);
  pool.check();
}

TEST("block pool: a block is free when its last reference goes") {
  BlockPool pool(2);
  const BlockId block = pool.allocate();
  pool.acquire(block);
  CHECK_EQ(pool.references(block), 2);
  pool.release(block);
  CHECK_EQ(pool.n_used(), 1);
  pool.release(block);
  CHECK_EQ(pool.n_used(), 0);
  CHECK_EQ(pool.n_free(), 2);
  CHECK_EQ(pool.allocate(), block);  // the one freed last comes first
  pool.check();
}

TEST("block pool: published blocks are kept, and evicted in the order of their release") {
  BlockPool pool(3);
  std::vector<BlockId> evicted;
  pool.on_evict([&](BlockId block) { evicted.push_back(block); });
  const BlockId a = pool.allocate(), b = pool.allocate(), c = pool.allocate();
  for (const BlockId block : {a, b, c}) pool.set_published(block, true);
  for (const BlockId block : {b, a, c}) pool.release(block);
  CHECK_EQ(pool.n_cached(), 3);
  CHECK_EQ(pool.n_free(), 0);
  CHECK_EQ(pool.n_available(), 3);
  pool.acquire(b);  // found again: no longer the oldest
  pool.release(b);
  pool.check();
  for (const BlockId expected : {a, c, b}) CHECK_EQ(pool.allocate(), expected);
  CHECK(evicted == std::vector<BlockId>({a, c, b}));
  for (const BlockId block : {a, b, c}) pool.release(block);  // their content was forgotten
  CHECK_EQ(pool.n_free(), 3);
  pool.check();
}

TEST("block pool: taking a cached block out of the middle of the list keeps it whole") {
  BlockPool pool(3);
  const BlockId a = pool.allocate(), b = pool.allocate(), c = pool.allocate();
  for (const BlockId block : {a, b, c}) {
    pool.set_published(block, true);
    pool.release(block);
  }
  pool.acquire(b);
  pool.check();
  CHECK_EQ(pool.n_cached(), 2);
  CHECK_EQ(pool.allocate(), a);
  CHECK_EQ(pool.allocate(), c);
  CHECK_EQ(pool.allocate(), kNoBlock);
}

TEST("block pool: withdrawn content makes a cached block free and leaves a used one used") {
  BlockPool pool(2);
  const BlockId a = pool.allocate(), b = pool.allocate();
  pool.set_published(a, true);
  pool.set_published(a, true);  // nothing changes
  pool.set_published(b, true);
  pool.release(a);
  pool.set_published(a, false);
  pool.set_published(b, false);
  CHECK_EQ(pool.n_free(), 1);
  CHECK_EQ(pool.n_cached(), 0);
  pool.release(b);
  CHECK_EQ(pool.n_free(), 2);
  pool.check();
}

TEST("block pool: misuse is an internal error that names the block") {
  CHECK_THROWS_WITH(BlockPool(0), Error, "at least 1 block, got 0");
  BlockPool pool(2);
  CHECK_THROWS_WITH(pool.acquire(0), Error, "KV block 0 was acquired while free");
  CHECK_THROWS_WITH(pool.release(1), Error, "KV block 1 was released more often than acquired");
  CHECK_THROWS_WITH(pool.set_published(1, true), Error, "KV block 1 was published while free");
  CHECK_THROWS_WITH(pool.release(2), Error, "no KV block has number 2");
  CHECK_THROWS_WITH(pool.acquire(-1), Error, "no KV block has number -1");
  pool.check();
}
