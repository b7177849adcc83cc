// Any text as config.json, and what follows a NUL in it as generation_config.json: an error, or a
// configuration whose sizes can be computed with.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "quire/model/config.h"
#include "quire/model/decoder_weights.h"
#include "quire/tensor/dtype.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {  // NOLINT
  const std::string_view text(reinterpret_cast<const char*>(data), size);  // NOLINT: bytes as text
  const std::size_t end = text.find('\0');
  const std::string_view generation =
      end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  const auto config = quire::model::config_from_hf(text.substr(0, end), generation);
  if (config.ok()) {
    static_cast<void>(quire::model::num_parameters(config.value()));
    static_cast<void>(
        config.value().kv_geometry(quire::tensor::DType::kBFloat16, 32).block_bytes());
  }
  return 0;
}
