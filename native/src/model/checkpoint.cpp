#include "model/checkpoint.h"

#include <dirent.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "model/json.h"
#include "model/safetensors.h"

namespace qwen3 {
namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr std::size_t kMaxIndexBytes = std::size_t{8} << 20U;  // 32B: 60 KB

// How much of the files is asked for at open. Measured on a file of 1.19 GB read once by two threads: from disk 350 ms
// with MADV_WILLNEED, 800 ms without, 1,300 to 2,300 ms with huge pages or MADV_POPULATE_READ; from the page cache 110
// to 210 ms whatever the advice. The call waits once the disk's queue is full, so a large model gets only a head start.
constexpr std::size_t kPrefetchBytes = std::size_t{4} << 30U;

[[noreturn]] void bad(const std::string& sentence) {
  throw Error(Status::kBadModel, sentence);
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// Names of weight files in the directory, for messages only; never more than a few.
std::vector<std::string> weight_files_in(const std::string& model_dir) {
  std::vector<std::string> names;
  DIR* dir = ::opendir(model_dir.c_str());
  if (dir == nullptr) return names;
  while (const dirent* entry = ::readdir(dir)) {
    const std::string_view name = entry->d_name;
    for (const char* end : {".safetensors", ".bin", ".gguf", ".pth", ".pt"}) {
      if (ends_with(name, end)) names.emplace_back(name);
    }
  }
  ::closedir(dir);
  std::sort(names.begin(), names.end());
  return names;
}

bool exists(const std::string& path) {
  try {
    (void)MappedFile::open(path);
    return true;
  } catch (const Error& error) {
    return error.status() != Status::kNotFound;  // there but unreadable: let the real open say so
  }
}

// A file of the same directory that the system can name and a message can show.
bool is_plain_shard_name(std::string_view name) {
  constexpr std::size_t kMaxNameBytes = 255;  // NAME_MAX
  return ends_with(name, ".safetensors") && name.size() <= kMaxNameBytes &&
         std::all_of(name.begin(), name.end(), [](char c) { return c >= 0x20 && c <= 0x7e && c != '/' && c != '\\'; });
}

// tensor name -> shard's file name. Empty when there is no index.
std::map<std::string, std::string> read_index(const std::string& path) {
  std::map<std::string, std::string> shard_of;
  const Json index = parse_json_object(read_text_file(path, kMaxIndexBytes), path);
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object()) bad(path + " has no weight_map object");
  if (map->empty()) bad(path + " has an empty weight_map");
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string())
      bad(path + " maps tensor " + quote(tensor) + " to " + describe(file) + ", expected a file name");
    const auto& name = file.get_ref<const std::string&>();
    if (!is_plain_shard_name(name)) {
      bad(path + " maps tensor " + quote(tensor) + " to " + quote(name) +
          ", expected the name of a .safetensors file in the same directory");
    }
    shard_of.emplace(tensor, name);
  }
  return shard_of;
}

struct Located {
  const SafetensorsEntry* entry;
  const SafetensorsFile* file;
};

// All files of the checkpoint and where each tensor lies.
class Directory {
 public:
  explicit Directory(const std::string& model_dir) : index_path_(model_dir + "/" + kIndexFile) {
    // An index decides alone: a model.safetensors left beside it belongs to another checkpoint.
    if (exists(index_path_)) {
      open_shards(model_dir);
    } else {
      open_single(model_dir);
    }
    for (const SafetensorsFile& file : files_) {
      for (const SafetensorsEntry& entry : file.entries) tensors_.emplace(entry.name, Located{&entry, &file});
    }
  }
  Directory(const Directory&) = delete;  // tensors_ points into files_
  Directory& operator=(const Directory&) = delete;

  const std::vector<SafetensorsFile>& files() const { return files_; }

  const Located* find(const std::string& name) const {
    const auto it = tensors_.find(name);
    return it == tensors_.end() ? nullptr : &it->second;
  }
  // What to call the place where a tensor should have been.
  std::string where() const { return shard_of_.empty() ? files_[0].file->path() : index_path_; }

  void refuse_unused(const std::set<std::string>& used) const {
    for (const SafetensorsFile& file : files_) {
      for (const SafetensorsEntry& entry : file.entries) {
        if (used.contains(entry.name)) continue;
        bad(file.file->path() + ": tensor " + quote(entry.name) + " (" + entry.dtype + " " + shape_text(entry.shape) +
            ") is not part of a Qwen3 model with this config.json");
      }
    }
  }

 private:
  void open_single(const std::string& model_dir) {
    const std::string path = model_dir + "/" + kSingleFile;
    try {
      files_.push_back(open_safetensors(path));
    } catch (const Error& error) {
      if (error.status() != Status::kNotFound) throw;
      const auto others = weight_files_in(model_dir);
      throw Error(Status::kNotFound,
                  model_dir + " has neither " + kSingleFile + " nor " + kIndexFile +
                      (others.empty() ? "; download the weights"
                                      : ", only " + quote(others[0]) +
                                            "; weights are read from safetensors files of these names"));
    }
  }

  void open_shards(const std::string& model_dir) {
    shard_of_ = read_index(index_path_);
    std::map<std::string, const std::string*> first_tensor_of;
    for (const auto& [tensor, shard] : shard_of_) first_tensor_of.emplace(shard, &tensor);
    for (const auto& [shard, tensor] : first_tensor_of) {
      const std::string path = model_dir + "/" + shard;
      try {
        files_.push_back(open_safetensors(path));
      } catch (const Error& error) {
        if (error.status() != Status::kNotFound) throw;
        report_missing_shard(model_dir, path, *tensor, first_tensor_of);
      }
      check_shard(files_.back(), shard);
    }
  }

  [[noreturn]] void report_missing_shard(const std::string& model_dir, const std::string& path,
                                         const std::string& tensor,
                                         const std::map<std::string, const std::string*>& shards) const {
    std::string hint = "; download it again";
    for (const std::string& name : weight_files_in(model_dir)) {
      if (!ends_with(name, ".safetensors") || shards.contains(name)) continue;
      hint =
          ", while " + quote(name) + " is there and not in the index; the index is stale, fetch the one of these files";
      break;
    }
    throw Error(Status::kNotFound,
                path + " does not exist, but " + kIndexFile + " maps tensor " + quote(tensor) + " to it" + hint);
  }

  // The index and the shard must agree both ways.
  void check_shard(const SafetensorsFile& file, const std::string& shard) const {
    std::set<std::string_view> held;
    for (const SafetensorsEntry& entry : file.entries) {
      held.insert(entry.name);
      const auto mapped = shard_of_.find(entry.name);
      if (mapped != shard_of_.end() && mapped->second == shard) continue;
      bad(file.file->path() + " holds tensor " + quote(entry.name) + ", but " + index_path_ +
          (mapped == shard_of_.end() ? " does not know it" : " maps it to " + quote(mapped->second)) +
          "; the index is stale or of another checkpoint");
    }
    for (const auto& [tensor, name] : shard_of_) {
      if (name == shard && !held.contains(tensor)) {
        bad(file.file->path() + " lacks tensor " + quote(tensor) + ", which " + index_path_ + " maps to it");
      }
    }
  }

  std::string index_path_;
  std::map<std::string, std::string> shard_of_;
  std::vector<SafetensorsFile> files_;
  std::unordered_map<std::string, Located> tensors_;
};

DType float_dtype(const SafetensorsEntry& entry, const std::string& path) {
  if (entry.dtype == "BF16") return DType::kBf16;
  if (entry.dtype == "F16") return DType::kF16;
  if (entry.dtype == "F32") return DType::kF32;
  throw Error(Status::kUnsupported,
              path + ": tensor " + quote(entry.name) + " has dtype " + entry.dtype + ", expected BF16, F16 or F32");
}

}  // namespace

Checkpoint Checkpoint::open(const std::string& model_dir, const ModelConfig& config) {
  const Directory directory(model_dir);
  Checkpoint checkpoint;
  std::set<std::string> used;
  std::vector<HostTensor*> slots;

  // Fills one tensor of the model from the directory; data comes later, when the whole structure is known to be right.
  const auto take = [&](HostTensor& tensor, const std::string& name, std::vector<int64_t> shape) {
    const Located* found = directory.find(name);
    if (found == nullptr) {
      bad(directory.where() + " has no tensor " + quote(name) + ", expected one of shape " + shape_text(shape));
    }
    const SafetensorsEntry& entry = *found->entry;
    const std::string& path = found->file->file->path();
    if (entry.shape != shape) {
      bad(path + ": tensor " + quote(name) + " has shape " + shape_text(entry.shape) + ", expected " +
          shape_text(shape) + " by config.json");
    }
    tensor.name = name;
    tensor.dtype = float_dtype(entry, path);
    tensor.shape = std::move(shape);
    tensor.file = path;
    tensor.data = found->file->file->data() + entry.begin;
    used.insert(name);
    slots.push_back(&tensor);
  };

  const int64_t hidden = config.hidden;
  const int64_t intermediate = config.intermediate;
  const int64_t head_dim = config.head_dim;
  const int64_t q = config.n_heads * head_dim;
  const int64_t kv = config.n_kv_heads * head_dim;
  take(checkpoint.embed_tokens, "model.embed_tokens.weight", {config.vocab, hidden});
  checkpoint.layers.resize(static_cast<std::size_t>(config.n_layers));
  for (int i = 0; i < config.n_layers; ++i) {
    const std::string prefix = "model.layers." + std::to_string(i) + ".";
    LayerTensors& layer = checkpoint.layers[static_cast<std::size_t>(i)];
    take(layer.input_layernorm, prefix + "input_layernorm.weight", {hidden});
    take(layer.q_proj, prefix + "self_attn.q_proj.weight", {q, hidden});
    take(layer.k_proj, prefix + "self_attn.k_proj.weight", {kv, hidden});
    take(layer.v_proj, prefix + "self_attn.v_proj.weight", {kv, hidden});
    take(layer.q_norm, prefix + "self_attn.q_norm.weight", {head_dim});
    take(layer.k_norm, prefix + "self_attn.k_norm.weight", {head_dim});
    take(layer.o_proj, prefix + "self_attn.o_proj.weight", {hidden, q});
    take(layer.post_attention_layernorm, prefix + "post_attention_layernorm.weight", {hidden});
    take(layer.gate_proj, prefix + "mlp.gate_proj.weight", {intermediate, hidden});
    take(layer.up_proj, prefix + "mlp.up_proj.weight", {intermediate, hidden});
    take(layer.down_proj, prefix + "mlp.down_proj.weight", {hidden, intermediate});
  }
  take(checkpoint.norm, "model.norm.weight", {hidden});

  constexpr const char* kHead = "lm_head.weight";
  const Located* head_copy = config.tied ? directory.find(kHead) : nullptr;
  if (config.tied) {
    used.insert(kHead);
  } else {
    take(checkpoint.lm_head, kHead, {config.vocab, hidden});
  }
  directory.refuse_unused(used);

  if (head_copy != nullptr) {
    // The official 0.6B and 1.7B files carry an equal copy. One that differs means that the file or the config is
    // wrong.
    HostTensor copy;
    take(copy, kHead, {config.vocab, hidden});
    slots.pop_back();
    const HostTensor& embed = checkpoint.embed_tokens;
    if (copy.dtype != embed.dtype || std::memcmp(copy.data, embed.data, static_cast<std::size_t>(embed.bytes())) != 0) {
      bad(copy.file + ": tensor " + quote(kHead) + " differs from " + quote(embed.name) +
          ", but config.json says that they are tied (tie_word_embeddings is true)");
    }
    const SafetensorsEntry& entry = *head_copy->entry;
    head_copy->file->file->release(entry.begin, entry.end - entry.begin);  // read once, never again
  }

  for (HostTensor* tensor : slots) {
    const auto bytes = static_cast<std::size_t>(tensor->bytes());
    checkpoint.total_bytes += tensor->bytes();
    checkpoint.n_elements += tensor->elements();
    if (reinterpret_cast<std::uintptr_t>(tensor->data) % static_cast<std::uintptr_t>(dtype_bytes(tensor->dtype)) == 0)
      continue;
    // Only files of other writers: safetensors pads its header to 8 bytes.
    std::shared_ptr<std::byte[]> copy(new std::byte[bytes]);
    std::memcpy(copy.get(), tensor->data, bytes);
    tensor->data = copy.get();
    checkpoint.copies_.push_back(std::move(copy));
  }
  if (config.tied) checkpoint.lm_head = checkpoint.embed_tokens;
  std::size_t prefetched = 0;
  for (const SafetensorsFile& file : directory.files()) {
    file.file->prefetch(kPrefetchBytes - prefetched);
    prefetched += std::min(kPrefetchBytes - prefetched, file.file->size());
    checkpoint.files.push_back({file.file->path(), static_cast<int64_t>(file.file->size()), file.file});
  }
  return checkpoint;
}

}  // namespace qwen3
