// Finds KV blocks by the text that they hold, so that requests with a common beginning share its computation.
//
// A full block's content is determined by its own token ids and everything before them. Each published block is an
// entry with a number that is never used again; its key is (parent entry, salt, token ids). A lookup hashes the key,
// then compares it with the stored one, so a hash collision is a miss and never another user's text; since a parent
// entry was itself matched by content, equality holds for the whole beginning by induction. Integers only; the engine's
// mutex guards it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kv/block_pool.h"

namespace qwen3 {

// Number of a published block's content; kRoot is the empty beginning.
using EntryId = uint64_t;
inline constexpr EntryId kRoot = 0;

class PrefixCache {
 public:
  using Hash = uint64_t (*)(EntryId parent, std::string_view salt, std::span<const int32_t> tokens);
  static uint64_t default_hash(EntryId parent, std::string_view salt, std::span<const int32_t> tokens);

  // `hash` is a parameter so that tests can force collisions.
  PrefixCache(BlockPool& pool, int block_size, Hash hash = default_hash);
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  struct Hit {
    BlockId block = kNoBlock;  // kNoBlock: a miss
    EntryId entry = kRoot;
  };
  // The block that holds `tokens` [block_size] after `parent`. Takes no reference. The salt counts only below kRoot:
  // deeper entries have it in their ancestry.
  Hit find(EntryId parent, std::string_view salt, std::span<const int32_t> tokens) const;

  // Makes a used block that holds `tokens` after `parent` findable, and returns its entry. If another block has the
  // same content already, that one's entry is returned and `block` stays unpublished. A block that is published keeps
  // its entry: samples of one request publish the blocks that they share, each on its own.
  EntryId publish(BlockId block, EntryId parent, std::string_view salt, std::span<const int32_t> tokens);

  size_t n_entries() const { return by_hash_.size(); }

  // Throws Error(kInternal) if the index and the blocks disagree. O(n_blocks).
  void check() const;

 private:
  struct Entry {
    EntryId id = kRoot;  // kRoot: this block is not published
    EntryId parent = kRoot;
    uint64_t hash = 0;
    std::string salt;
  };

  std::span<const int32_t> tokens_of(BlockId block) const;
  void forget(BlockId block);

  BlockPool& pool_;
  const size_t block_size_;
  const Hash hash_;
  std::vector<Entry> entries_;   // [n_blocks]
  std::vector<int32_t> tokens_;  // [n_blocks, block_size]
  std::unordered_multimap<uint64_t, BlockId> by_hash_;
  EntryId next_entry_ = kRoot + 1;
};

}  // namespace qwen3
