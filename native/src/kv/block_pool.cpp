#include "kv/block_pool.h"

#include "base/error.h"

namespace qwen3 {

BlockPool::BlockPool(int n_blocks) {
  if (n_blocks < 1)
    throw Error(Status::kInvalidArgument, "a KV pool needs at least 1 block, got " + std::to_string(n_blocks));
  blocks_.resize(static_cast<size_t>(n_blocks));
  free_.reserve(blocks_.size());
  for (BlockId block = n_blocks - 1; block >= 0; block--) free_.push_back(block);
}

BlockPool::Block& BlockPool::at(BlockId block) {
  if (block < 0 || block >= n_blocks())
    throw Error(Status::kInternal, "no KV block has number " + std::to_string(block));
  return blocks_[static_cast<size_t>(block)];
}

BlockId BlockPool::allocate() {
  BlockId block = kNoBlock;
  if (!free_.empty()) {
    block = free_.back();
    free_.pop_back();
  } else if (oldest_ != kNoBlock) {
    block = oldest_;
    if (evicted_) evicted_(block);
    unlink(block);
    at(block).published = false;
  } else {
    return kNoBlock;
  }
  at(block).references = 1;
  return block;
}

void BlockPool::acquire(BlockId block) {
  Block& b = at(block);
  if (b.references == 0) {
    if (!b.published) throw Error(Status::kInternal, "KV block " + std::to_string(block) + " was acquired while free");
    unlink(block);
  }
  b.references++;
}

void BlockPool::release(BlockId block) {
  Block& b = at(block);
  if (b.references <= 0)
    throw Error(Status::kInternal, "KV block " + std::to_string(block) + " was released more often than acquired");
  if (--b.references > 0) return;
  if (b.published)
    link_newest(block);
  else
    free_.push_back(block);
}

void BlockPool::set_published(BlockId block, bool published) {
  Block& b = at(block);
  if (b.published == published) return;
  if (b.references == 0) {
    if (published) throw Error(Status::kInternal, "KV block " + std::to_string(block) + " was published while free");
    unlink(block);
    free_.push_back(block);
  }
  b.published = published;
}

void BlockPool::unlink(BlockId block) {
  Block& b = at(block);
  (b.older == kNoBlock ? oldest_ : at(b.older).newer) = b.newer;
  (b.newer == kNoBlock ? newest_ : at(b.newer).older) = b.older;
  b.older = b.newer = kNoBlock;
  n_cached_--;
}

void BlockPool::link_newest(BlockId block) {
  Block& b = at(block);
  b.older = newest_;
  b.newer = kNoBlock;
  (newest_ == kNoBlock ? oldest_ : at(newest_).newer) = block;
  newest_ = block;
  n_cached_++;
}

void BlockPool::check() const {
  const auto fail = [](const std::string& what) { throw Error(Status::kInternal, "KV pool is inconsistent: " + what); };
  std::vector<char> seen(blocks_.size(), 0);
  for (const BlockId block : free_) {
    if (block < 0 || block >= n_blocks()) fail("free list names block " + std::to_string(block));
    const Block& b = blocks_[static_cast<size_t>(block)];
    if (seen[static_cast<size_t>(block)]++) fail("block " + std::to_string(block) + " is free twice");
    if (b.references != 0 || b.published) fail("free block " + std::to_string(block) + " is held or published");
  }
  int n_listed = 0;
  BlockId previous = kNoBlock;
  for (BlockId block = oldest_; block != kNoBlock; block = blocks_[static_cast<size_t>(block)].newer) {
    const Block& b = blocks_[static_cast<size_t>(block)];
    if (seen[static_cast<size_t>(block)]++) fail("block " + std::to_string(block) + " is listed twice");
    if (b.references != 0 || !b.published) fail("cached block " + std::to_string(block) + " is held or not published");
    if (b.older != previous) fail("the list of cached blocks is broken at block " + std::to_string(block));
    previous = block;
    n_listed++;
  }
  if (previous != newest_) fail("the list of cached blocks does not end at the newest");
  if (n_listed != n_cached_)
    fail(std::to_string(n_cached_) + " blocks are counted as cached, " + std::to_string(n_listed) + " are listed");
  for (size_t i = 0; i < blocks_.size(); i++) {
    if (!seen[i] && blocks_[i].references <= 0) fail("block " + std::to_string(i) + " is lost");
  }
}

}  // namespace qwen3
