// inspect_json: what a model path holds and needs, without reading weights.
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "quire/base/home_path.h"
#include "quire/base/json.h"  // IWYU pragma: keep (json is its alias)
#include "quire/engine/model_bundle.h"
#include "quire/kernels/packed_weights.h"
#include "quire/model/config.h"
#include "quire/model/loader.h"
#include "quire/model/tensor_map.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tools.h"
#include "quire/weights/checkpoint.h"
#include "quire/weights/tensor_info.h"

namespace quire {
namespace {

namespace json = base::json;
using kernels::WeightFormat;

json::object shape_of(const model::ModelConfig& config) {
  return {{"layers", config.layers},
          {"hidden_size", config.hidden_size},
          {"intermediate_size", config.intermediate_size},
          {"heads", config.heads},
          {"kv_heads", config.kv_heads},
          {"head_dim", config.head_dim},
          {"vocab_size", config.vocab_size},
          {"max_positions", config.max_positions},
          {"tied_embeddings", config.tied_embeddings}};
}

// What is computed in where nothing is asked for, on the CPU.
WeightFormat computed_format(const model::ModelConfig& config) {
  const bool is_f32 = config.checkpoint_dtype == tensor::DType::kFloat32;
  return is_f32 ? WeightFormat::kF32 : WeightFormat::kBf16;
}

json::object weight_bytes_of(const model::ModelConfig& config) {
  json::object bytes;
  bytes["auto"] = model::packed_weight_bytes(config, computed_format(config));
  for (const auto format :
       {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kQ8g32, WeightFormat::kQ4g32}) {
    bytes[kernels::format_name(format)] = model::packed_weight_bytes(config, format);
  }
  return bytes;
}

json::object kv_bytes_of(const model::ModelConfig& config) {
  json::object bytes;
  for (const auto dtype : {tensor::DType::kFloat32, tensor::DType::kBFloat16}) {
    const auto geometry = config.kv_geometry(dtype, 32);
    bytes[tensor::dtype_name(dtype)] = geometry.block_bytes() / geometry.block_tokens;
  }
  return bytes;
}

void add_config(const model::ModelConfig& config, json::object& report) {
  report["family"] = config.family;
  report["shape"] = shape_of(config);
  report["parameters"] = config.parameters();
  report["dtype"] = tensor::dtype_name(config.checkpoint_dtype);
  report["weight_bytes"] = weight_bytes_of(config);
  report["kv_bytes_per_token"] = kv_bytes_of(config);
  json::array remarks(config.remarks.begin(), config.remarks.end());
  report["remarks"] = std::move(remarks);
}

// A model without a tokenizer runs on ids: nothing is missing there.
void add_text(const std::string& path, const weights::Checkpoint& checkpoint, json::object& report,
              json::array& unsupported) {
  const auto text = engine::text_of(path, checkpoint);
  report["tokenizer"] = nullptr;
  report["chat_template"] = false;
  if (!text.ok()) {
    unsupported.emplace_back("tokenizer: " + text.error().message);
  }
  if (!text.ok() || *text == nullptr) {
    return;
  }
  const engine::TextBundle& bundle = **text;
  report["tokenizer"] = json::object{{"vocab_size", bundle.tokenizer.vocab_size()},
                                     {"bos_token", bundle.bos_token},
                                     {"eos_token", bundle.eos_token}};
  report["chat_template"] = bundle.chat_template.has_value();
  if (!bundle.chat_template) {
    report["chat_template_error"] = bundle.template_error;
  }
}

// How many tensors are in which encoding, and of the quantised ones how many are computed how.
json::object encodings_of(const weights::Checkpoint& checkpoint,
                          const std::map<std::string, std::string>& computed) {
  struct Kind {
    int tensors = 0;
    std::map<std::string, int> computed_as;
  };
  std::map<weights::Encoding, Kind> kinds;
  for (const weights::TensorInfo& tensor : checkpoint.tensors()) {
    Kind& kind = kinds[tensor.encoding];
    ++kind.tensors;
    if (const auto found = computed.find(tensor.name); found != computed.end()) {
      ++kind.computed_as[found->second];
    }
  }
  json::object encodings;
  for (const auto& [encoding, kind] : kinds) {
    json::object& entry = encodings[weights::encoding_name(encoding)].emplace_object();
    entry["tensors"] = kind.tensors;
    if (!kind.computed_as.empty()) {
      entry["computed_as"] = json::object(kind.computed_as.begin(), kind.computed_as.end());
    }
  }
  return encodings;
}

// Tensors of unknown types, and the first that is missing, superfluous or has another shape.
void add_checkpoint(const weights::Checkpoint& checkpoint, const Result<model::ModelConfig>& config,
                    json::object& report, json::array& unsupported) {
  report["tensors"] = checkpoint.tensors().size();
  report["file_bytes"] = checkpoint.total_bytes();
  const auto computed = config.ok() ? model::computed_as(*config, checkpoint)
                                    : std::map<std::string, std::string>();  // nobody knows
  report["encodings"] =
      encodings_of(checkpoint, computed.ok() ? *computed : std::map<std::string, std::string>());
  for (const auto& tensor : checkpoint.unsupported()) {
    unsupported.emplace_back("tensor " + tensor.name + " of type " + tensor.type);
  }
  if (config.ok() && checkpoint.unsupported().empty()) {
    const auto bytes = model::own_weight_bytes(*config, checkpoint, computed_format(*config));
    if (bytes.ok()) {
      report["weight_bytes"].as_object()["auto"] = *bytes;  // codes stay codes
    }
    const Status fits = model::TensorMap(*config, checkpoint).check_all();
    if (!fits.ok()) {
      unsupported.emplace_back(fits.error().message);
    }
  }
}

}  // namespace

std::string expand_home(std::string_view path) { return base::home_path(path); }

Result<std::string> inspect_json(const std::string& model) {
  json::object report;
  json::array unsupported;
  report["model"] = model;
  auto config = engine::load_config(model);
  if (!config.ok() && config.error().code != ErrorCode::kUnsupported) {
    return config.error();
  }
  const bool is_preset = model.starts_with("preset:");
  std::string path;
  std::optional<weights::Checkpoint> checkpoint;
  if (!is_preset) {
    QUIRE_TRY(path, engine::locate(model));
    QUIRE_TRY(checkpoint, weights::Checkpoint::open(path));
  }
  if (!config.ok()) {
    for (const std::string& what : engine::refused_by_config(model)) {
      unsupported.emplace_back(what);
    }
  } else {
    if (checkpoint) {
      model::take_dtype(*checkpoint, *config);
    }
    add_config(*config, report);
  }
  if (checkpoint) {
    add_checkpoint(*checkpoint, config, report, unsupported);
    add_text(path, *checkpoint, report, unsupported);
  }
  report["unsupported"] = std::move(unsupported);
  return json::serialize(report);
}

}  // namespace quire
