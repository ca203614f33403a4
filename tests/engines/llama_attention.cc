// Times one layer's attention of stock llama.cpp and of libggml-ckv.so, for llama_figures.py.
//
//   llama_attention LIBS BACKENDS THREADS ROUNDS CELLS TOKENS HEADS [STATE]
//
// The graph is that of one layer of a model with MLA: queries of TOKENS x HEADS rows over CELLS
// rows of bf16, all visible. With STATE, a sequence state of ckvctl attach, the cache contains only
// its first layer's cell instead. BACKENDS is CPU (the stock kernel), CKV or CPU,CKV: they are
// timed one after the other. Prints for each the microseconds of the median of ROUNDS.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

namespace {

constexpr int64_t kWidth = 576, kLatent = 512;
constexpr float kScale = 0.14050443f;  // of llama_host's model

struct Graph {
  Graph(ggml_backend_t backend, int64_t cells, int64_t tokens, int64_t heads) {
    ggml_init_params params{};
    params.mem_size = size_t{1} << 20;
    params.no_alloc = true;
    context = ggml_init(params);
    cache = ggml_new_tensor_4d(context, GGML_TYPE_BF16, kWidth, cells, 1, 1);
    ggml_set_name(cache, "cache_k_l0");
    q = ggml_new_tensor_4d(context, GGML_TYPE_F32, kWidth, heads, tokens, 1);
    mask = ggml_new_tensor_4d(context, GGML_TYPE_F16, cells, tokens, 1, 1);
    ggml_tensor* k = ggml_view_4d(context, cache, kWidth, 1, cells, 1, cache->nb[1], cache->nb[1],
                                  cache->nb[2], 0);
    ggml_tensor* v =
        ggml_view_4d(context, k, kLatent, 1, cells, 1, k->nb[1], k->nb[2], k->nb[3], 0);
    out = ggml_flash_attn_ext(context, ggml_permute(context, q, 0, 2, 1, 3),
                              ggml_permute(context, k, 0, 2, 1, 3),
                              ggml_permute(context, v, 0, 2, 1, 3), mask, kScale, 0, 0);
    graph = ggml_new_graph(context);
    ggml_build_forward_expand(graph, out);
    buffer = ggml_backend_alloc_ctx_tensors_from_buft(
        context, ggml_backend_get_default_buffer_type(backend));
  }
  ~Graph() {
    ggml_backend_buffer_free(buffer);
    ggml_free(context);
  }

  ggml_context* context = nullptr;
  ggml_tensor *cache = nullptr, *q = nullptr, *mask = nullptr, *out = nullptr;
  ggml_cgraph* graph = nullptr;
  ggml_backend_buffer_t buffer = nullptr;
};

void Fill(Graph& graph) {
  std::mt19937 rng(1);
  std::normal_distribution<float> value(0, 1);
  std::vector<float> floats(static_cast<size_t>(ggml_nelements(graph.cache)));
  for (float& f : floats) f = value(rng);
  ggml_fp32_to_bf16_row(floats.data(), static_cast<ggml_bf16_t*>(graph.cache->data),
                        static_cast<int64_t>(floats.size()));
  auto* q = static_cast<float*>(graph.q->data);
  for (int64_t i = 0; i < ggml_nelements(graph.q); ++i) q[i] = value(rng) / 8;
  std::memset(graph.mask->data, 0, ggml_nbytes(graph.mask));
}

// The first layer's cell into the first row of the cache, which alone is visible.
bool PutReference(Graph& graph, const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  uint32_t ids = 0;
  if (bytes.size() < 12) return false;
  std::memcpy(&ids, bytes.data() + 8, sizeof(ids));
  // magic, version, count, ids; streams, cells; the cell; transposed, layers; type, row bytes
  const size_t row = 12 + size_t{ids} * 4 + 8 + 12 + 8 + 12;
  if (bytes.size() < row + kWidth * 2) return false;
  std::memcpy(graph.cache->data, bytes.data() + row, kWidth * 2);
  auto* mask = static_cast<ggml_fp16_t*>(graph.mask->data);
  const ggml_fp16_t hidden = ggml_fp32_to_fp16(-INFINITY);
  for (int64_t i = 0; i < ggml_nelements(graph.mask); ++i) {
    mask[i] = i % graph.mask->ne[0] == 0 ? ggml_fp32_to_fp16(0) : hidden;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 8) return 2;
  ggml_time_init();
  ggml_backend_load_all_from_path(argv[1]);
  const std::string backends = argv[2];
  const int threads = std::atoi(argv[3]), rounds = std::atoi(argv[4]);
  const char* state = argc > 8 ? argv[8] : nullptr;
  for (const char* name : {"CPU", "CKV"}) {
    ggml_backend_dev_t device = ggml_backend_dev_by_name(name);
    if (backends.find(name) == std::string::npos) continue;
    if (device == nullptr) return 5;
    ggml_backend_t backend = ggml_backend_dev_init(device, nullptr);
    const auto set_threads =
        reinterpret_cast<ggml_backend_set_n_threads_t>(ggml_backend_reg_get_proc_address(
            ggml_backend_dev_backend_reg(device), "ggml_backend_set_n_threads"));
    set_threads(backend, threads);
    Graph graph(backend, std::atoi(argv[5]), std::atoi(argv[6]), std::atoi(argv[7]));
    Fill(graph);
    if (state != nullptr && !PutReference(graph, state)) return 3;
    std::vector<int64_t> times;
    for (int i = 0; i < rounds; ++i) {
      const int64_t begin = ggml_time_us();
      if (ggml_backend_graph_compute(backend, graph.graph) != GGML_STATUS_SUCCESS) return 4;
      times.push_back(ggml_time_us() - begin);
    }
    std::sort(times.begin(), times.end());
    std::printf("%s %ld\n", name, static_cast<long>(times[times.size() / 2]));
    ggml_backend_free(backend);
  }
  std::fflush(stdout);
  std::_Exit(0);  // the libraries' own destructors are not ours to test
}
