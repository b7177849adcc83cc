// inspect(): what a model path holds and needs, without reading weights.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "quire/base/no_memory.h"
#include "quire/diagnostics.h"
#include "quire/engine/bundle_options.h"
#include "quire/engine/model_bundle.h"
#include "quire/kernels/packed_weights.h"
#include "quire/model/config.h"
#include "quire/model/decoder_weights.h"
#include "quire/model/layer_plan.h"
#include "quire/model/tensor_map.h"
#include "quire/model/weight_packer.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/weights/model_files.h"
#include "quire/weights/tensor_info.h"

namespace quire {
namespace {

using kernels::WeightFormat;

ModelInfo::Shape shape_of(const model::ModelConfig& config) {
  return {.layers = config.layers,
          .hidden_size = config.hidden_size,
          .intermediate_size = config.intermediate_size,
          .heads = config.heads,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim,
          .vocab_size = config.vocab_size,
          .max_positions = config.context_length,
          .tied_embeddings = config.tied_embeddings,
          .experts = config.experts.count,
          .experts_per_token = config.experts.chosen};
}

// Returns the format that a CPU computes in where nothing is asked for.
WeightFormat computed_format(const model::ModelConfig& config) {
  const bool is_f32 = config.stored_dtype == tensor::DType::kFloat32;
  return is_f32 ? WeightFormat::kF32 : WeightFormat::kBf16;
}

// Returns the bytes of packed weights by format. Codes of model files whose types are all known
// stay codes where nothing is asked for.
NamedNumbers weight_bytes_of(const model::ModelConfig& config,
                             const std::optional<weights::ModelFiles>& model_files) {
  const WeightFormat chosen = computed_format(config);
  std::int64_t chosen_bytes = model::packed_weight_bytes(config, chosen);
  if (model_files && model_files->unsupported().empty()) {
    const auto own = model::own_weight_bytes(config, *model_files, chosen);
    chosen_bytes = own.ok() ? *own : chosen_bytes;
  }
  NamedNumbers bytes = {{"auto", chosen_bytes}};
  for (const auto format :
       {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kQ8g32, WeightFormat::kQ4g32}) {
    bytes.emplace_back(kernels::format_name(format), model::packed_weight_bytes(config, format));
  }
  return bytes;
}

NamedNumbers kv_bytes_of(const model::ModelConfig& config) {
  NamedNumbers bytes;
  for (const auto dtype : {tensor::DType::kFloat32, tensor::DType::kBFloat16}) {
    const auto geometry = config.kv_geometry(dtype, 32);
    bytes.emplace_back(tensor::dtype_name(dtype), geometry.block_bytes() / geometry.block_tokens);
  }
  for (const auto format :
       {tensor::KVFormat::kInt8, tensor::KVFormat::kFp8, tensor::KVFormat::kInt4}) {
    if (engine::check_kv_format(config, format, false).ok()) {
      const auto coded = config.kv_geometry(tensor::DType::kBFloat16, 32, format);
      bytes.emplace_back(tensor::kv_format_name(format, coded.dtype),
                         coded.block_bytes() / coded.block_tokens);
    }
  }
  return bytes;
}

// Returns the layers by kind and window.
std::vector<ModelInfo::Group> groups_of(const model::ModelConfig& config) {
  const auto dtype = computed_format(config) == WeightFormat::kF32 ? tensor::DType::kFloat32
                                                                   : tensor::DType::kBFloat16;
  const auto geometry = config.kv_geometry(dtype, 32);
  const std::int64_t head_bytes = geometry.head_block_bytes() / geometry.block_tokens;
  std::vector<ModelInfo::Group> groups;
  for (std::int32_t layer = 0; layer < config.layers; ++layer) {
    const model::LayerPlan plan = config.layer_plan(static_cast<std::size_t>(layer));
    if (plan.mixer == model::MixerKind::kNone || !plan.stores_kv) {
      continue;
    }
    const bool has_state = plan.mixer != model::MixerKind::kAttention;
    const std::int32_t window = has_state ? 0 : plan.window_tokens;
    const char* kind = has_state ? "state" : window > 0 ? "window" : "full";
    auto group = std::ranges::find_if(groups, [&](const ModelInfo::Group& known) {
      return known.kind == kind && known.window == window;
    });
    if (group == groups.end()) {
      group = groups.insert(group, {.kind = kind, .layers = {}, .window = window});
    }
    group->layers.push_back(layer);
    group->bytes = has_state ? config.state_geometry().state_bytes
                             : group->bytes + head_bytes * geometry.stored_heads(plan.group_index);
  }
  return groups;
}

ModelInfo::Config config_info(const model::ModelConfig& config,
                              const std::optional<weights::ModelFiles>& model_files) {
  return {.family = std::string(config.family),
          .shape = shape_of(config),
          .parameters = model::num_parameters(config),
          .active_parameters = model::num_active_parameters(config),
          .dtype = std::string(tensor::dtype_name(config.stored_dtype)),
          .weight_bytes = weight_bytes_of(config, model_files),
          .kv_bytes_per_token = kv_bytes_of(config),
          .groups = groups_of(config),
          .remarks = config.remarks};
}

// Adds the tokenizer and template. A model without a tokenizer runs on ids: nothing is missing
// there.
void add_text(const std::string& path, const weights::ModelFiles& model_files,
              ModelInfo::Files& files, std::vector<std::string>& unsupported) {
  const auto text = engine::text_of(path, model_files);
  if (!text.ok()) {
    unsupported.push_back("tokenizer: " + text.error().message);
  }
  if (!text.ok() || *text == nullptr) {
    return;
  }
  const engine::TextBundle& bundle = **text;
  files.tokenizer = ModelInfo::Text{.vocab_size = bundle.tokenizer.vocab_size(),
                                    .bos_token = bundle.bos_token,
                                    .eos_token = bundle.eos_token};
  files.has_chat_template = bundle.chat_template.has_value();
  if (!bundle.chat_template) {
    files.chat_template_error = bundle.template_error;
  }
}

// Counts the tensors of each encoding, and of the quantised ones how many are computed how.
std::vector<ModelInfo::Encoding> encodings_of(const weights::ModelFiles& model_files,
                                              const std::map<std::string, std::string>& computed) {
  struct Kind {
    int tensors = 0;
    std::map<std::string, int> computed_as;
  };
  std::map<weights::Encoding, Kind> kinds;
  for (const weights::TensorInfo& tensor : model_files.tensors()) {
    Kind& kind = kinds[tensor.encoding];
    ++kind.tensors;
    if (const auto found = computed.find(tensor.name); found != computed.end()) {
      ++kind.computed_as[found->second];
    }
  }
  std::vector<ModelInfo::Encoding> encodings;
  encodings.reserve(kinds.size());
  for (const auto& [encoding, kind] : kinds) {
    encodings.push_back(
        {.name = std::string(weights::encoding_name(encoding)),
         .tensors = kind.tensors,
         .computed_as = NamedNumbers(kind.computed_as.begin(), kind.computed_as.end())});
  }
  return encodings;
}

// Describes tensors. Names those of unknown types, and the first that is missing, superfluous or
// has another shape.
ModelInfo::Files files_info(const weights::ModelFiles& model_files,
                            const Result<model::ModelConfig>& config,
                            std::vector<std::string>& unsupported) {
  const auto computed = config.ok() ? model::computed_as(*config, model_files)
                                    : std::map<std::string, std::string>();  // nobody knows
  ModelInfo::Files files = {
      .tensors = std::ssize(model_files.tensors()),
      .file_bytes = static_cast<std::int64_t>(model_files.total_bytes()),
      .encodings = encodings_of(model_files,
                                computed.ok() ? *computed : std::map<std::string, std::string>())};
  for (const auto& tensor : model_files.unsupported()) {
    unsupported.push_back("tensor " + tensor.name + " of type " + tensor.type);
  }
  if (config.ok() && model_files.unsupported().empty()) {
    const Status fits = model::TensorMap(*config, model_files).check_all();
    if (!fits.ok()) {
      unsupported.push_back(fits.error().message);
    }
  }
  return files;
}

}  // namespace

Result<ModelInfo> inspect(const std::string& model) try {
  ModelInfo info = {.model = model};
  auto config = engine::read_config(model);
  if (!config.ok() && config.error().code != ErrorCode::kUnsupported) {
    return config.error();
  }
  const bool is_preset = model.starts_with("preset:");
  std::string path;
  std::optional<weights::ModelFiles> model_files;
  if (!is_preset) {
    QUIRE_TRY(path, engine::locate(model));
    QUIRE_TRY(model_files, weights::ModelFiles::open(path));
  }
  if (!config.ok()) {
    info.unsupported = engine::refused_by_config(model);
  } else {
    if (model_files) {
      model::take_dtype(*model_files, *config);
      model::note_skipped_tensors(*model_files, *config);
    }
    if (const Status fine = config->validate(); !fine.ok()) {
      info.unsupported.push_back(fine.error().message);
    }
    info.config = config_info(*config, model_files);
  }
  if (model_files) {
    info.files = files_info(*model_files, config, info.unsupported);
    add_text(path, *model_files, *info.files, info.unsupported);
  }
  return info;
} catch (const std::bad_alloc&) {
  return base::no_memory("looking at the model");
}

}  // namespace quire
