#include "kv/prefix_cache.h"

#include <algorithm>

#include "base/error.h"

namespace qwen3 {

namespace {

// Finalizer of a 64-bit mixer: every input bit reaches every output bit.
uint64_t mix(uint64_t x) {
  x ^= x >> 32;
  x *= 0xe9846af9b1a615dULL;
  x ^= x >> 32;
  x *= 0xe9846af9b1a615dULL;
  x ^= x >> 28;
  return x;
}

}  // namespace

uint64_t PrefixCache::default_hash(EntryId parent, std::string_view salt, std::span<const int32_t> tokens) {
  uint64_t h = mix(parent + 0x9e3779b97f4a7c15ULL);
  for (const char c : salt) h = mix(h ^ static_cast<unsigned char>(c));
  for (const int32_t token : tokens) h = mix(h ^ static_cast<uint32_t>(token));
  return h;
}

PrefixCache::PrefixCache(BlockPool& pool, int block_size, Hash hash)
    : pool_(pool), block_size_(static_cast<size_t>(block_size)), hash_(hash) {
  entries_.resize(static_cast<size_t>(pool.n_blocks()));
  tokens_.resize(entries_.size() * block_size_);
  pool_.on_evict([this](BlockId block) { forget(block); });
}

std::span<const int32_t> PrefixCache::tokens_of(BlockId block) const {
  return {tokens_.data() + static_cast<size_t>(block) * block_size_, block_size_};
}

PrefixCache::Hit PrefixCache::find(EntryId parent, std::string_view salt, std::span<const int32_t> tokens) const {
  if (parent != kRoot) salt = {};
  const auto [begin, end] = by_hash_.equal_range(hash_(parent, salt, tokens));
  for (auto it = begin; it != end; ++it) {
    const Entry& entry = entries_[static_cast<size_t>(it->second)];
    const std::span<const int32_t> stored = tokens_of(it->second);
    if (entry.parent == parent && entry.salt == salt &&
        std::equal(tokens.begin(), tokens.end(), stored.begin(), stored.end()))
      return {it->second, entry.id};
  }
  return {};
}

EntryId PrefixCache::publish(BlockId block, EntryId parent, std::string_view salt, std::span<const int32_t> tokens) {
  if (tokens.size() != block_size_) throw Error(Status::kInternal, "only full KV blocks can be published");
  Entry& entry = entries_[static_cast<size_t>(block)];
  if (entry.id != kRoot) {
    const std::span<const int32_t> stored = tokens_of(block);
    if (!std::equal(tokens.begin(), tokens.end(), stored.begin(), stored.end()))
      throw Error(Status::kInternal, "KV block " + std::to_string(block) + " was published twice with other tokens");
    return entry.id;
  }
  if (const Hit hit = find(parent, salt, tokens); hit.block != kNoBlock) return hit.entry;
  if (parent != kRoot) salt = {};
  pool_.set_published(block, true);
  entry = {next_entry_++, parent, hash_(parent, salt, tokens), std::string(salt)};
  std::copy(tokens.begin(), tokens.end(),
            tokens_.begin() + static_cast<int64_t>(static_cast<size_t>(block) * block_size_));
  by_hash_.emplace(entry.hash, block);
  return entry.id;
}

void PrefixCache::forget(BlockId block) {
  Entry& entry = entries_[static_cast<size_t>(block)];
  const auto [begin, end] = by_hash_.equal_range(entry.hash);
  by_hash_.erase(std::find_if(begin, end, [&](const auto& item) { return item.second == block; }));
  entry = {};
}

void PrefixCache::check() const {
  size_t n_published = 0;
  for (size_t block = 0; block < entries_.size(); block++) n_published += entries_[block].id != kRoot;
  if (n_published != by_hash_.size())
    throw Error(Status::kInternal, "prefix cache is inconsistent: " + std::to_string(n_published) +
                                       " blocks are published, " + std::to_string(by_hash_.size()) + " are indexed");
  for (const auto& [hash, block] : by_hash_) {
    const Entry& entry = entries_[static_cast<size_t>(block)];
    if (entry.id == kRoot || entry.hash != hash)
      throw Error(Status::kInternal, "prefix cache is inconsistent: the index names block " + std::to_string(block) +
                                         " under a wrong hash");
  }
}

}  // namespace qwen3
