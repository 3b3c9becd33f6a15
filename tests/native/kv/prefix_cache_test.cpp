// The prefix cache: what is found, what must never be (other salts, other parents, colliding hashes), eviction.
#include "kv/prefix_cache.h"

#include <set>
#include <vector>

#include "base/error.h"
#include "check.h"

using qwen3::BlockId;
using qwen3::BlockPool;
using qwen3::EntryId;
using qwen3::Error;
using qwen3::kNoBlock;
using qwen3::kRoot;
using qwen3::PrefixCache;

namespace {

using Tokens = std::vector<int32_t>;

uint64_t same_hash(EntryId, std::string_view, std::span<const int32_t>) {
  return 42;
}

}  // namespace

TEST("prefix cache: finds a published block by content, below the same parent only") {
  BlockPool pool(4);
  PrefixCache cache(pool, 2);
  const BlockId a = pool.allocate(), b = pool.allocate();
  const EntryId first = cache.publish(a, kRoot, "", Tokens{1, 2});
  const EntryId second = cache.publish(b, first, "", Tokens{3, 4});
  CHECK_EQ(cache.find(kRoot, "", Tokens{1, 2}).block, a);
  CHECK_EQ(cache.find(kRoot, "", Tokens{1, 2}).entry, first);
  CHECK_EQ(cache.find(first, "", Tokens{3, 4}).block, b);
  CHECK_EQ(cache.find(kRoot, "", Tokens{3, 4}).block, kNoBlock);
  CHECK_EQ(cache.find(second, "", Tokens{3, 4}).block, kNoBlock);
  CHECK_EQ(cache.find(kRoot, "", Tokens{2, 1}).block, kNoBlock);
  CHECK_EQ(cache.n_entries(), 2u);
  cache.check();
}

TEST("prefix cache: a salt separates whole chains") {
  BlockPool pool(4);
  PrefixCache cache(pool, 2);
  const BlockId a = pool.allocate(), b = pool.allocate(), c = pool.allocate();
  const EntryId of_a = cache.publish(a, kRoot, "tenant a", Tokens{1, 2});
  CHECK_EQ(cache.find(kRoot, "", Tokens{1, 2}).block, kNoBlock);
  CHECK_EQ(cache.find(kRoot, "tenant b", Tokens{1, 2}).block, kNoBlock);
  CHECK_EQ(cache.find(kRoot, "tenant a", Tokens{1, 2}).block, a);
  const EntryId of_b = cache.publish(b, kRoot, "tenant b", Tokens{1, 2});
  CHECK(of_a != of_b);
  cache.publish(c, of_a, "tenant a", Tokens{3, 4});
  CHECK_EQ(cache.find(of_b, "tenant b", Tokens{3, 4}).block, kNoBlock);
  CHECK_EQ(cache.find(of_a, "tenant a", Tokens{3, 4}).block, c);
  cache.check();
}

TEST("prefix cache: equal content is published once") {
  BlockPool pool(2);
  PrefixCache cache(pool, 2);
  const BlockId a = pool.allocate(), b = pool.allocate();
  const EntryId entry = cache.publish(a, kRoot, "", Tokens{1, 2});
  CHECK_EQ(cache.publish(b, kRoot, "", Tokens{1, 2}), entry);
  CHECK_EQ(cache.n_entries(), 1u);
  pool.release(b);
  CHECK_EQ(pool.n_free(), 1);  // b has nothing worth keeping
  pool.release(a);
  CHECK_EQ(pool.n_cached(), 1);
  cache.check();
}

TEST("prefix cache: colliding hashes are told apart by content, parent and salt") {
  BlockPool pool(8);
  PrefixCache cache(pool, 2, same_hash);
  const BlockId a = pool.allocate(), b = pool.allocate(), c = pool.allocate(), d = pool.allocate();
  const EntryId ea = cache.publish(a, kRoot, "", Tokens{1, 2});
  const EntryId eb = cache.publish(b, kRoot, "", Tokens{1, 3});
  const EntryId ec = cache.publish(c, kRoot, "salt", Tokens{1, 2});
  const EntryId ed = cache.publish(d, ea, "", Tokens{1, 2});
  CHECK_EQ(std::set<EntryId>({ea, eb, ec, ed}).size(), 4u);
  CHECK_EQ(cache.find(kRoot, "", Tokens{1, 2}).block, a);
  CHECK_EQ(cache.find(kRoot, "", Tokens{1, 3}).block, b);
  CHECK_EQ(cache.find(kRoot, "salt", Tokens{1, 2}).block, c);
  CHECK_EQ(cache.find(ea, "", Tokens{1, 2}).block, d);
  CHECK_EQ(cache.find(eb, "", Tokens{1, 2}).block, kNoBlock);
  CHECK_EQ(cache.find(kRoot, "", Tokens{2, 2}).block, kNoBlock);
  cache.check();
  // Evicting one of them takes the right one away.
  pool.release(b);
  for (int i = 0; i < 5; i++) pool.allocate();
  CHECK_EQ(cache.find(kRoot, "", Tokens{1, 3}).block, kNoBlock);
  CHECK_EQ(cache.find(kRoot, "", Tokens{1, 2}).block, a);
  CHECK_EQ(cache.n_entries(), 3u);
  cache.check();
}

TEST("prefix cache: eviction forgets a block, and numbers of entries are never used again") {
  BlockPool pool(1);
  PrefixCache cache(pool, 2);
  EntryId previous = kRoot;
  for (int round = 0; round < 3; round++) {
    const BlockId block = pool.allocate();
    REQUIRE(block != kNoBlock);
    CHECK_EQ(cache.find(kRoot, "", Tokens{7, 7}).block, kNoBlock);
    const EntryId entry = cache.publish(block, kRoot, "", Tokens{7, 7});
    CHECK(entry > previous);
    previous = entry;
    pool.release(block);
    CHECK_EQ(cache.find(kRoot, "", Tokens{7, 7}).block, block);
  }
  cache.check();
}

// Two samples share blocks 0 and 1. Block 0's content was published by a third block, which was evicted since: block 0
// gets an entry of its own now, block 1 has its entry already, below the old one.
TEST("prefix cache: a shared block that is published again keeps its entry, whatever its parent") {
  BlockPool pool(3);
  PrefixCache cache(pool, 2);
  const BlockId other = pool.allocate(), block0 = pool.allocate(), block1 = pool.allocate();
  const EntryId old_parent = cache.publish(other, kRoot, "", Tokens{1, 2});
  CHECK_EQ(cache.publish(block0, kRoot, "", Tokens{1, 2}), old_parent);
  const EntryId child = cache.publish(block1, old_parent, "", Tokens{3, 4});
  pool.release(other);
  CHECK_EQ(pool.allocate(), other);
  const EntryId new_parent = cache.publish(block0, kRoot, "", Tokens{1, 2});
  CHECK(new_parent != old_parent);
  CHECK_EQ(cache.publish(block1, new_parent, "", Tokens{3, 4}), child);
  CHECK_EQ(cache.n_entries(), 2u);
  cache.check();
}

TEST("prefix cache: half a block, or a published block with other tokens, is an internal error") {
  BlockPool pool(2);
  PrefixCache cache(pool, 2);
  const BlockId block = pool.allocate();
  CHECK_THROWS_WITH(cache.publish(block, kRoot, "", Tokens{1}), Error, "only full KV blocks");
  cache.publish(block, kRoot, "", Tokens{1, 2});
  CHECK_THROWS_WITH(cache.publish(block, kRoot, "", Tokens{3, 4}), Error, "published twice");
}

TEST("prefix cache: the default hash sees every part of the key") {
  const auto hash = PrefixCache::default_hash;
  std::set<uint64_t> hashes;
  size_t n = 0;
  for (const EntryId parent : {kRoot, EntryId{1}, EntryId{2}})
    for (const char* salt : {"", "a", "b", "ab", "ba"})
      for (const Tokens& tokens : {Tokens{1, 2}, Tokens{2, 1}, Tokens{1, 2, 0}, Tokens{0, 1, 2}, Tokens{-1, 2}}) {
        hashes.insert(hash(parent, salt, tokens));
        n++;
      }
  CHECK_EQ(hashes.size(), n);
}
