#include "quire/model/tensor_map.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/str.h"
#include "quire/kernels/packed_weights.h"
#include "quire/model/config.h"
#include "quire/model/decoder_weights.h"
#include "quire/model/expert_tensors.h"
#include "quire/model/family.h"
#include "quire/model/latent_tensors.h"
#include "quire/model/layer_plan.h"
#include "quire/model/state_shape.h"
#include "quire/model/state_tensors.h"
#include "quire/model/tensor_part.h"
#include "quire/model/tensor_shape.h"
#include "quire/result.h"
#include "quire/tensor/code_rows.h"
#include "quire/weights/gguf.h"
#include "quire/weights/model_files.h"
#include "quire/weights/tensor_info.h"

namespace quire::model {
namespace {

using weights::TensorInfo;

// Returns the row at which an interleaved file keeps row `row` of a projection.
std::int64_t interleaved_row(std::int64_t row, std::int64_t head_dim) {
  const std::int64_t place = row % head_dim;
  const std::int64_t half = head_dim / 2;
  return row - place + place % half * 2 + place / half;
}

// Returns the row at which a file keeps row `row` of a part.
std::int64_t row_in_file(const TensorPart& part, std::int64_t row) {
  if (part.interleaved_head_dim != 0) {
    row = interleaved_row(row, part.interleaved_head_dim);
  }
  if (const RowGroups groups = part.groups; groups.rows != 0) {
    row = row / groups.rows * groups.stride + row % groups.rows;
  }
  return part.first_row + row;
}

// Calls read(tensor, its first row, number of rows, how many rows are out already). Covers rows
// [first, first + count) of the parts' rows laid one after the other.
template <class Read>
void for_rows(std::span<const TensorPart> parts, std::int64_t first, std::int64_t count,
              Read read) {
  std::int64_t done = 0;
  for (const TensorPart& part : parts) {
    const std::int64_t here = std::min(count, part.rows - first);
    QUIRE_CHECK(part.lines == 0, "columns of a tensor are read by values");
    const bool in_order = part.interleaved_head_dim == 0 && part.groups.rows == 0;
    if (here > 0 && in_order) {
      read(*part.tensor, part.first_row + first, here, done);
    }
    for (std::int64_t i = 0; i < here && !in_order; ++i) {
      read(*part.tensor, row_in_file(part, first + i), std::int64_t{1}, done + i);
    }
    if (here > 0) {
      done += here;
      count -= here;
      first += here;
    }
    first -= part.rows;
  }
}

// Reads values [first, first + out.size()) of a row. Rows that have blocks are read whole.
void read_of_row(const TensorInfo& tensor, std::int64_t row, std::int64_t first,
                 std::span<float> out) {
  if (tensor.reader == nullptr && tensor.encoding < weights::Encoding::kQ8_0) {
    weights::read_values(tensor, row, first, out);
    return;
  }
  std::vector<float> whole(static_cast<std::size_t>(tensor.columns()));
  weights::read_rows(tensor, row, 1, whole);
  std::copy_n(whole.begin() + first, out.size(), out.begin());
}

// Reads rows [first, first + count) of a part whose rows are columns of its tensor.
void read_columns(const TensorPart& part, std::int64_t first, std::int64_t count,
                  std::span<float> out) {
  const std::int64_t begin = row_in_file(part, first);
  const std::int64_t end = row_in_file(part, first + count - 1) + 1;
  std::vector<float> line(static_cast<std::size_t>(end - begin));
  for (std::int64_t i = 0; i < part.lines; ++i) {
    read_of_row(*part.tensor, part.first_line + i, begin, line);
    for (std::int64_t row = 0; row < count; ++row) {
      out[static_cast<std::size_t>(row * part.lines + i)] =
          line[static_cast<std::size_t>(row_in_file(part, first + row) - begin)];
    }
  }
}

// Returns `count` rows of a matrix that lies in `all`, from row `first` on.
template <class T>
std::span<T> rows_of(std::span<T> all, std::int64_t first, std::int64_t count, std::int64_t width) {
  return all.subspan(static_cast<std::size_t>(first * width),
                     static_cast<std::size_t>(count * width));
}

// Returns the rows of each of `count` tensors that share a fused weight.
std::vector<std::int64_t> row_shares(const ModelConfig& config, const WeightId& id,
                                     std::int64_t rows, std::size_t count) {
  const WeightRole role = id.role;
  if (count == 1) {
    return {rows};
  }
  if (role == WeightRole::kGateUp || role == WeightRole::kExpertGateUp ||
      role == WeightRole::kSharedGateUp || role == WeightRole::kStateGates) {
    return {rows / 2, rows / 2};
  }
  const StateShape& state = config.state;
  if (role == WeightRole::kStateIn) {
    return {state.channels, rows - state.channels};
  }
  const LayerPlan plan = config.layer_plan(static_cast<std::size_t>(id.layer));
  const std::int64_t kv_rows = std::int64_t{plan.kv_heads} * plan.head_dim;
  const std::int64_t q_rows = std::int64_t{config.heads} * plan.head_dim;
  std::vector<std::int64_t> shares(count, kv_rows);
  shares.front() = config.gates_attention ? 2 * q_rows : q_rows;
  return shares;
}

// A weight of one tensor.
struct NamedRole {
  WeightRole role;
  std::string_view TensorNames::* stem;
};

constexpr std::array<NamedRole, 25> kNamedRoles = {
    {{WeightRole::kEmbedding, &TensorNames::embedding},
     {WeightRole::kHead, &TensorNames::head},
     {WeightRole::kFinalNorm, &TensorNames::final_norm},
     {WeightRole::kAttentionNorm, &TensorNames::attention_norm},
     {WeightRole::kQNorm, &TensorNames::q_norm},
     {WeightRole::kKNorm, &TensorNames::k_norm},
     {WeightRole::kOutput, &TensorNames::output},
     {WeightRole::kMlpNorm, &TensorNames::mlp_norm},
     {WeightRole::kDown, &TensorNames::down},
     {WeightRole::kAttentionOutNorm, &TensorNames::attention_out_norm},
     {WeightRole::kMlpOutNorm, &TensorNames::mlp_out_norm},
     {WeightRole::kSinks, &TensorNames::sinks},
     {WeightRole::kStateOut, &TensorNames::state_out},
     {WeightRole::kStateNorm, &TensorNames::state_norm},
     {WeightRole::kConv, &TensorNames::conv},
     {WeightRole::kDecay, &TensorNames::decay},
     {WeightRole::kDecayShift, &TensorNames::decay_shift},
     {WeightRole::kStateSkip, &TensorNames::state_skip},
     {WeightRole::kLayerEmbedding, &TensorNames::layer_embedding},
     {WeightRole::kLayerProjection, &TensorNames::layer_projection},
     {WeightRole::kLayerInputNorm, &TensorNames::layer_input_norm},
     {WeightRole::kInputGate, &TensorNames::input_gate},
     {WeightRole::kInputProjection, &TensorNames::input_projection},
     {WeightRole::kInputNorm, &TensorNames::input_norm},
     {WeightRole::kLayerScale, &TensorNames::layer_scale}}};

// Returns the names of a weight, without endings; none of what find_of_experts names.
std::vector<std::string_view> stems_of(const TensorNames& names, WeightRole role) {
  for (const NamedRole& named : kNamedRoles) {
    if (named.role == role) {
      return {names.*named.stem};
    }
  }
  switch (role) {
    case WeightRole::kQkv:
      return names.qkv;
    case WeightRole::kGateUp:
      return names.gate_up;
    case WeightRole::kStateIn:
      return names.state_in;
    case WeightRole::kStateGates:
      return names.state_gates;
    case WeightRole::kChoiceBias:
      return {names.experts.choice_bias};
    case WeightRole::kRouterNorm:
      return {names.experts.router_norm};
    case WeightRole::kExpertScales:
      return {names.experts.scales};
    case WeightRole::kExpertsNorm:
      return {names.experts.input_norm};
    case WeightRole::kSharedOutNorm:
      return {names.experts.shared_out_norm};
    case WeightRole::kExpertsOutNorm:
      return {names.experts.output_norm};
    case WeightRole::kSharedGateUp:
      return names.experts.shared_gate_up;
    case WeightRole::kSharedDown:
      return {names.experts.shared_down};
    case WeightRole::kSharedGate:
      return {names.experts.shared_gate};
    default:
      return {};
  }
}

std::size_t layer_of(const WeightId& id) { return static_cast<std::size_t>(std::max(id.layer, 0)); }

// Makes the queries' rows, which stand head by head before those of their gates, the first part,
// and the gates' the last.
void split_gates(std::vector<TensorPart>& parts, std::int32_t head_dim) {
  TensorPart& queries = parts.front();
  queries.rows /= 2;
  queries.groups = {.rows = head_dim, .stride = std::int64_t{2} * head_dim};
  TensorPart gates = queries;
  gates.first_row = head_dim;
  parts.push_back(gates);
}

// Makes the rows of gates, which stand in turn with those of ups, the first part.
void split_in_turn(std::vector<TensorPart>& parts) {
  TensorPart& gates = parts.front();
  gates.rows /= 2;
  gates.groups = {.rows = 1, .stride = 2};
  TensorPart ups = gates;
  ups.first_row += 1;
  parts.push_back(ups);
}

// Follows from the config, so nothing is lost by not reading it.
bool is_derived(std::string_view name) {
  constexpr std::array<std::string_view, 3> kGgufRope = {
      "rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"};
  return name.ends_with(".rotary_emb.inv_freq") ||
         std::find(kGgufRope.begin(), kGgufRope.end(), name) != kGgufRope.end();
}

constexpr std::string_view kModel = "model.";
constexpr std::string_view kAfter2025 = "model.language_model.";
constexpr std::string_view kIn2025 = "language_model.";
// Tensors beside the text part.
constexpr std::array<std::string_view, 8> kOtherParts = {
    "model.visual.",          "model.vision_tower.", "vision_tower.",
    "multi_modal_projector.", "model.embed_vision.", "model.multi_modal_projector.",
    "model.audio_tower.",     "model.embed_audio."};

// Notes the tensors of every weight that visit_weights shows.
struct Finder {
  const TensorMap& map;
  std::set<const TensorInfo*>& used;

  Status matrix(const WeightId& id, const kernels::PackedWeights& /*weights*/, std::int64_t columns,
                std::int64_t depth) {
    QUIRE_TRY(const auto parts, map.find(id, columns, depth));
    for (const TensorPart& part : parts) {
      used.insert(part.tensor);
    }
    return {};
  }
  Status vector(const WeightId& id, const std::vector<float>& /*values*/, std::int64_t size) {
    return matrix(id, {}, size, 0);
  }
};

TensorNames names_for(const ModelConfig& config, const weights::ModelFiles& model_files) {
  const Family* family = find_family(config.family);
  QUIRE_CHECK(family != nullptr, "the config was validated");
  return model_files.gguf() == nullptr ? family->hf : family->gguf;
}

}  // namespace

void read_parts(std::span<const TensorPart> parts, std::int64_t first_row, std::int64_t num_rows,
                std::span<float> out) {
  if (!parts.empty() && parts.front().lines != 0) {
    for (const TensorPart& part : parts) {
      const std::int64_t count = std::clamp<std::int64_t>(part.rows - first_row, 0, num_rows);
      if (count > 0) {
        const auto size = static_cast<std::size_t>(count * part.lines);
        read_columns(part, first_row, count, out.first(size));
        out = out.subspan(size);
        num_rows -= count;
        first_row += count;
      }
      first_row -= part.rows;
    }
    return;
  }
  for_rows(parts, first_row, num_rows,
           [&](const TensorInfo& tensor, std::int64_t first, std::int64_t rows, std::int64_t done) {
             weights::read_rows(tensor, first, rows, rows_of(out, done, rows, tensor.columns()));
           });
}

void read_part_codes(std::span<const TensorPart> parts, std::int64_t first_row,
                     std::int64_t num_rows, const tensor::CodeRows& out) {
  for_rows(parts, first_row, num_rows,
           [&](const TensorInfo& tensor, std::int64_t first, std::int64_t rows, std::int64_t done) {
             const std::int64_t groups = tensor.columns() / tensor::kCodeGroup;
             weights::read_codes(
                 tensor, first, rows,
                 {.codes = rows_of(out.codes, done, rows, tensor.columns()),
                  .scales = rows_of(out.scales, done, rows, groups),
                  .minimums = rows_of(out.minimums, done, rows, groups),
                  .wide_scales = rows_of(out.wide_scales, done, rows, groups),
                  .multiples = rows_of(out.multiples, done, rows, groups * 2),
                  .minimum_multiples = rows_of(out.minimum_multiples, done, rows, groups * 2)});
           });
}

std::vector<float> read_vectors(std::span<const TensorPart> parts) {
  std::vector<float> all;
  for (const TensorPart& part : parts) {
    std::vector<float> values(static_cast<std::size_t>(part.tensor->num_values()));
    weights::read_rows(*part.tensor, 0, part.tensor->rows(), values);
    for (std::int64_t i = 0; i < part.rows; ++i) {
      all.push_back(values[static_cast<std::size_t>(row_in_file(part, i))]);
    }
  }
  return all;
}

TensorMap::TensorMap(const ModelConfig& config, const weights::ModelFiles& model_files)
    : config_(config), model_files_(model_files), names_(names_for(config, model_files)) {
  if (!config.is_text_part) {
    return;
  }
  if (model_files.find(base::str_cat(kAfter2025, "embed_tokens.weight")) != nullptr) {
    before_model_ = kAfter2025;
  } else if (model_files.find(base::str_cat(kIn2025, "model.embed_tokens.weight")) != nullptr) {
    before_all_ = kIn2025;
  }
}

// Returns the name that the files have for a tensor of the text model.
std::string TensorMap::placed(std::string_view name) const {
  if (!before_model_.empty() && name.starts_with(kModel)) {
    return base::str_cat(before_model_, name.substr(kModel.size()));
  }
  return base::str_cat(before_all_, name);
}

// Returns the number of the layer that a tensor is of, or -1.
std::int64_t TensorMap::layer_of_name(std::string_view name) const {
  const std::string prefix = placed(names_.layer);
  std::int64_t layer = -1;
  if (name.starts_with(prefix)) {
    (void)std::from_chars(name.data() + prefix.size(), name.data() + name.size(), layer);
  }
  return layer;
}

// Returns whether the tensor is of layers for drafts, which stand behind the others.
bool TensorMap::is_of_drafts(std::string_view name) const {
  const std::int64_t layer = config_.draft_layers == 0 ? -1 : layer_of_name(name);
  return layer >= config_.layers && layer < std::int64_t{config_.layers} + config_.draft_layers;
}

// Returns whether the tensor makes KV of a layer that reads another one's.
bool TensorMap::is_of_shared_kv(std::string_view name) const {
  const std::int64_t layer = config_.kv_sources.empty() ? -1 : layer_of_name(name);
  if (layer < 0 || layer >= config_.layers || config_.stores(static_cast<std::size_t>(layer))) {
    return false;
  }
  const std::string prefix = placed(base::str_cat(names_.layer, layer, "."));
  return std::ranges::any_of(
      std::array{names_.qkv[1], names_.qkv[2], names_.k_norm},
      [&](std::string_view stem) { return name == base::str_cat(prefix, stem, ".weight"); });
}

bool TensorMap::is_skipped(std::string_view name) const {
  if (is_of_drafts(name) || is_of_shared_kv(name)) {
    return true;
  }
  const auto begins = [&](std::string_view beginning) { return name.starts_with(beginning); };
  return (config_.is_text_part && std::ranges::any_of(kOtherParts, begins)) ||
         std::ranges::any_of(find_family(config_.family)->skipped_tensors, begins);
}

std::int64_t TensorMap::num_skipped() const {
  return std::ranges::count_if(model_files_.tensors(),
                               [&](const TensorInfo& tensor) { return is_skipped(tensor.name); });
}

void TensorMap::finish_vector(const WeightId& id, std::vector<float>& values) const {
  if (names_.norms_lack_one && is_norm(id.role)) {
    std::ranges::for_each(values, [](float& value) { value += 1.0f; });
  }
  if (id.role == WeightRole::kDecay && names_.decay_is_log) {
    std::ranges::for_each(values, [](float& value) { value = -std::exp(value); });
  }
  if (id.role == WeightRole::kRouterNorm) {
    const double root = std::sqrt(static_cast<double>(config_.hidden_size));
    std::ranges::for_each(values, [&](float& value) { value = static_cast<float>(value / root); });
  }
  if (id.role == WeightRole::kConv && !id.bias) {
    const auto taps = static_cast<std::size_t>(config_.state.taps);
    const std::vector<float> by_channel = values;
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i % taps * (values.size() / taps) + i / taps] = by_channel[i];
    }
  }
}

std::vector<std::string> TensorMap::names(const WeightId& id) const {
  const bool is_tied = id.role == WeightRole::kHead && config_.tied_embeddings;
  auto stems = stems_of(names_, is_tied ? WeightRole::kEmbedding : id.role);
  if (id.role == WeightRole::kQkv && stems.size() == 3) {
    const LayerPlan plan = config_.layer_plan(static_cast<std::size_t>(id.layer));
    stems.resize(1 + static_cast<std::size_t>(plan.kv_parts()));
  }
  const bool is_whole = id.role == WeightRole::kDecay || id.role == WeightRole::kDecayShift ||
                        id.role == WeightRole::kStateSkip || id.role == WeightRole::kChoiceBias ||
                        id.role == WeightRole::kSinks || id.role == WeightRole::kLayerScale ||
                        id.role == WeightRole::kRouterNorm || id.role == WeightRole::kExpertScales;
  const std::string_view ending = is_whole ? "" : id.bias ? ".bias" : ".weight";
  const std::string prefix = id.layer < 0 ? "" : base::str_cat(names_.layer, id.layer, ".");
  std::vector<std::string> full;
  full.reserve(stems.size());
  for (const std::string_view stem : stems) {
    full.push_back(placed(base::str_cat(prefix, stem, ending)));
  }
  return full;
}

// Returns an expert's part of a tensor that holds all of a layer.
Result<TensorPart> TensorMap::stacked_part(const TensorInfo& tensor, const WeightId& id,
                                           std::int64_t rows, std::int64_t depth) const {
  const std::int64_t count = config_.experts.count;
  if (depth > 0 && names_.experts.inputs_first && tensor.reader == nullptr) {
    QUIRE_TRY_STATUS(check_shape(tensor, {count, depth, rows}));
    if (tensor.encoding >= weights::Encoding::kQ8_0) {
      return {ErrorCode::kUnsupported,
              base::str_cat("tensor ", base::quoted(tensor.name),
                            " is quantised along its outputs, which is not implemented")};
    }
    return TensorPart{
        .tensor = &tensor, .rows = rows, .lines = depth, .first_line = id.expert * depth};
  }
  QUIRE_TRY_STATUS(depth == 0 ? check_shape(tensor, {count, rows})
                              : check_shape(tensor, {count, rows, depth}));
  return TensorPart{.tensor = &tensor, .rows = rows, .first_row = id.expert * rows};
}

Result<std::vector<TensorPart>> TensorMap::find_of_experts(const WeightId& id, std::int64_t columns,
                                                           std::int64_t depth) const {
  const std::string prefix = placed(base::str_cat(names_.layer, id.layer, "."));
  const ExpertTensors tensors = expert_tensors(names_.experts, id, prefix, model_files_);
  const auto shares = row_shares(config_, id, columns, tensors.names.size());
  std::vector<TensorPart> parts;
  parts.reserve(tensors.names.size());
  for (std::size_t i = 0; i < tensors.names.size(); ++i) {
    QUIRE_TRY(const TensorInfo* tensor,
              model_files_.require(base::str_cat(prefix, tensors.names[i])));
    if (tensors.stacked) {
      QUIRE_TRY(const TensorPart part, stacked_part(*tensor, id, shares[i], depth));
      parts.push_back(part);
      continue;
    }
    QUIRE_TRY_STATUS(depth == 0 ? check_shape(*tensor, {shares[i]})
                                : check_shape(*tensor, {shares[i], depth}));
    parts.push_back({.tensor = tensor, .rows = shares[i]});
  }
  if (id.role == WeightRole::kExpertGateUp && names_.experts.in_turn && parts.size() == 1) {
    split_in_turn(parts);
  }
  return parts;
}

Status TensorMap::check_part(const TensorInfo& tensor, const WeightId& id, std::int64_t rows,
                             std::int64_t depth) const {
  if (id.role == WeightRole::kConv) {
    return check_conv(tensor, id, config_.state);
  }
  if (depth == 0 && is_of_state(id.role) && tensor.shape.size() == 2) {
    return tensor.num_values() == rows ? Status() : check_shape(tensor, {rows});
  }
  const bool is_row = id.role == WeightRole::kSharedGate && tensor.shape.size() == 1;
  return depth == 0 || is_row ? check_shape(tensor, {depth == 0 ? rows : depth})
                              : check_shape(tensor, {rows, depth});
}

Result<std::vector<TensorPart>> TensorMap::find(const WeightId& id, std::int64_t columns,
                                                std::int64_t depth) const {
  if (is_of_experts(id.role)) {
    return find_of_experts(id, columns, depth);
  }
  if (is_of_latents(config_, id.role)) {
    const std::string prefix = placed(base::str_cat(names_.layer, id.layer, "."));
    return find_of_latents({config_, names_, model_files_, prefix}, id);
  }
  const std::vector<std::string> tensors = names(id);
  const auto shares = row_shares(config_, id, columns, tensors.size());
  std::vector<TensorPart> parts;
  parts.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    QUIRE_TRY(const TensorInfo* tensor, model_files_.require(tensors[i]));
    QUIRE_TRY_STATUS(check_part(*tensor, id, shares[i], depth));
    const bool rotated = id.role == WeightRole::kQkv && i < 2 && names_.interleaved;
    parts.push_back({tensor, shares[i], rotated ? config_.kv_size(layer_of(id)).head_dim : 0});
  }
  if (id.role == WeightRole::kQkv && config_.gates_attention) {
    split_gates(parts, config_.kv_size(layer_of(id)).head_dim);
  }
  const bool is_mixed = id.role == WeightRole::kStateIn || id.role == WeightRole::kStateGates;
  if (is_mixed && config_.state.kind == MixerKind::kGatedDelta && parts.size() == 1) {
    return parts_by_key_head(parts.front(), id.role, config_.state);
  }
  return parts;
}

Status TensorMap::check_tied_head(const TensorInfo& head) const {
  QUIRE_TRY(const TensorInfo* embedding,
            model_files_.require(placed(base::str_cat(names_.embedding, ".weight"))));
  if (weights::is_same(head, *embedding)) {
    return {};
  }
  return {ErrorCode::kCorrupt,
          base::str_cat("tensor ", base::quoted(head.name), " differs from ",
                        base::quoted(embedding->name),
                        " although the config ties them; set \"tie_word_embeddings\" to false")};
}

Status TensorMap::check_unused(const std::set<const TensorInfo*>& used) const {
  const std::string head = placed(base::str_cat(names_.head, ".weight"));
  for (const TensorInfo& tensor : model_files_.tensors()) {
    if (used.contains(&tensor) || is_derived(tensor.name) || is_skipped(tensor.name)) {
      continue;
    }
    if (!config_.tied_embeddings || tensor.name != head) {
      return {ErrorCode::kUnsupported,
              base::str_cat("tensor ", base::quoted(tensor.name), " is not part of a ",
                            config_.family, " model of this config")};
    }
    QUIRE_TRY_STATUS(check_tied_head(tensor));
  }
  for (const weights::UnsupportedTensor& tensor : model_files_.unsupported()) {
    if (!is_derived(tensor.name) && !is_skipped(tensor.name)) {
      return {ErrorCode::kUnsupported,
              base::str_cat("tensor ", base::quoted(tensor.name), " has type ", tensor.type,
                            ", which is not implemented")};
    }
  }
  return {};
}

Status TensorMap::check_architecture() const {
  const Family* family = find_family(config_.family);
  if (model_files_.gguf() == nullptr || family == nullptr) {
    return {};
  }
  QUIRE_TRY(const auto architecture, model_files_.gguf()->get_string("general.architecture", ""));
  if (architecture != family->gguf_architecture &&
      (architecture.empty() || architecture != family->other_gguf_architecture)) {
    return {ErrorCode::kUnsupported,
            base::str_cat("GGUF architecture ", base::quoted(architecture),
                          " is not that of the config's family: GGUF files of a ", config_.family,
                          " model say ", base::quoted(family->gguf_architecture))};
  }
  return {};
}

Status TensorMap::check_all() const {
  QUIRE_TRY_STATUS(check_architecture());
  DecoderWeights none;
  none.layers.resize(static_cast<std::size_t>(config_.layers));
  std::set<const TensorInfo*> used;
  Finder finder{*this, used};
  QUIRE_TRY_STATUS(visit_weights(config_, none, finder));
  return check_unused(used);
}

void note_skipped_tensors(const weights::ModelFiles& model_files, ModelConfig& config) {
  const std::int64_t skipped = TensorMap(config, model_files).num_skipped();
  if (skipped > 0) {
    config.remarks.push_back(base::str_cat(
        skipped,
        " tensors of parts for images, sounds or drafts are left out; the model reads text"));
  }
}

}  // namespace quire::model
