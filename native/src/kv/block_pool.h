// The pool of KV blocks: who holds which, and which may be taken.
//
// Integers only: it knows neither tensors nor requests. A block is in one of three states:
//   free    nobody holds it and its content is worthless
//   used    reference count > 0
//   cached  nobody holds it, but its content is published in the prefix cache and may be found again
// Invariant: free + used + cached == n_blocks. Every operation is O(1). The engine's mutex guards it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace qwen3 {

using BlockId = int32_t;
inline constexpr BlockId kNoBlock = -1;

class BlockPool {
 public:
  explicit BlockPool(int n_blocks);

  int n_blocks() const { return static_cast<int>(blocks_.size()); }
  int n_free() const { return static_cast<int>(free_.size()); }
  int n_cached() const { return n_cached_; }
  int n_used() const { return n_blocks() - n_free() - n_cached_; }
  // Blocks that allocate() can still hand out.
  int n_available() const { return n_free() + n_cached_; }

  // A block with reference count 1: a free one, else the cached one that was released longest ago. kNoBlock: none left.
  BlockId allocate();
  // One more reference to a used or cached block.
  void acquire(BlockId block);
  // One reference less; the last one makes the block cached if it is published, else free.
  void release(BlockId block);

  // Marks a used block's content as worth keeping, or a used or cached one's as worthless.
  void set_published(BlockId block, bool published);
  // Called with a cached block whose content is about to be overwritten.
  void on_evict(std::function<void(BlockId)> callback) { evicted_ = std::move(callback); }

  int references(BlockId block) const { return blocks_[static_cast<size_t>(block)].references; }

  // Walks all blocks and throws Error(kInternal) if the invariants do not hold. O(n_blocks).
  void check() const;

 private:
  struct Block {
    int references = 0;
    bool published = false;
    BlockId older = kNoBlock;  // neighbours in the list of cached blocks
    BlockId newer = kNoBlock;
  };

  Block& at(BlockId block);
  void unlink(BlockId block);
  void link_newest(BlockId block);

  std::vector<Block> blocks_;
  std::vector<BlockId> free_;  // a stack: the block freed last is warm in the processor's caches
  BlockId oldest_ = kNoBlock;
  BlockId newest_ = kNoBlock;
  int n_cached_ = 0;
  std::function<void(BlockId)> evicted_;
};

}  // namespace qwen3
