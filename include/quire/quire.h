// Everything: #include <quire/quire.h>, link quire::quire.
#pragma once

// IWYU pragma: begin_exports
#include "quire/checkpoints.h"
#include "quire/chunks.h"
#include "quire/context.h"
#include "quire/fields.h"
#include "quire/kv_cache.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sequence.h"
#include "quire/store.h"
#include "quire/tokenizer.h"
#include "quire/tools.h"
#include "quire/types.h"
#include "quire/version.h"
// IWYU pragma: end_exports
