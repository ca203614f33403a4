// The reference engine's model in float64, without absorption: keys and values are expanded per
// head, one token at a time. Slow and obviously right.

#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "attention/bf16.h"
#include "client/tools/reference_engine/reference_weights.h"

namespace ckv::testing_reference {

using Vector = std::vector<double>;

class Model {
 public:
  // `with_rope` false leaves positions out: a control, which the comparison must detect.
  explicit Model(const ReferenceConfig& config, bool with_rope = true)
      : c_(config), with_rope_(with_rope) {}

  // Returns the logits of the last of `tokens`, the first of which is at `position`.
  Vector Logits(const std::vector<int32_t>& tokens, uint64_t position) const {
    const std::vector<float> embedding = GenerateTensor(c_, 0, ReferenceTensor::kEmbedding);
    std::vector<Vector> x;
    for (const int32_t token : tokens) {
      const float* row = embedding.data() + size_t{static_cast<uint32_t>(token)} * c_.hidden;
      x.emplace_back(row, row + c_.hidden);
    }
    for (uint32_t layer = 0; layer < c_.layers; ++layer) RunLayer(layer, position, x);
    return Multiply(Norm(x.back()), GenerateTensor(c_, 0, ReferenceTensor::kLogits), 0,
                    c_.vocabulary);
  }

 private:
  static Vector Norm(const Vector& x) {
    double sum = 0;
    for (const double v : x) sum += v * v;
    Vector out;
    for (const double v : x)
      out.push_back(v / std::sqrt(sum / static_cast<double>(x.size()) + 1e-6));
    return out;
  }
  // y = x W with W [x.size()][width] at `offset` of `w`.
  static Vector Multiply(const Vector& x, const std::vector<float>& w, size_t offset,
                         uint32_t width) {
    Vector y(width, 0.0);
    for (size_t k = 0; k < x.size(); ++k) {
      for (uint32_t n = 0; n < width; ++n) y[n] += x[k] * w[offset + k * width + n];
    }
    return y;
  }
  static Vector Slice(const Vector& x, size_t begin, size_t count) {
    return {x.data() + begin, x.data() + begin + count};
  }
  static double Dot(const Vector& a, const Vector& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
  }
  Vector Rope(const Vector& x, uint64_t position) const {
    if (!with_rope_) return x;
    Vector out(x.size());
    for (size_t i = 0; i < x.size() / 2; ++i) {
      const double part = static_cast<double>(2 * i) / static_cast<double>(x.size());
      const double frequency = std::pow(c_.rope_theta, -part);
      const double angle = static_cast<double>(position) * frequency;
      out[2 * i] = x[2 * i] * std::cos(angle) - x[2 * i + 1] * std::sin(angle);
      out[2 * i + 1] = x[2 * i] * std::sin(angle) + x[2 * i + 1] * std::cos(angle);
    }
    return out;
  }
  // A cache keeps its rows in bf16; that is the model, not an error of the engine.
  static Vector Stored(Vector x) {
    for (double& v : x) v = FloatFromBf16(Bf16FromFloat(static_cast<float>(v)));
    return x;
  }

  Vector AttendHead(uint32_t head, const Vector& query, const std::vector<Vector>& latents,
                    const std::vector<Vector>& keys, uint64_t position, size_t token,
                    const std::vector<float>& key_up, const std::vector<float>& value_up) const {
    const Vector nope = Slice(query, size_t{head} * c_.d_query(), c_.d_nope);
    const Vector rope =
        Rope(Slice(query, size_t{head} * c_.d_query() + c_.d_nope, c_.d_rope), position + token);
    Vector weights;
    double sum = 0;
    for (size_t j = 0; j <= token; ++j) {
      double logit = Dot(rope, keys[j]);
      for (uint32_t i = 0; i < c_.d_nope; ++i) {
        const size_t row = (size_t{head} * c_.d_nope + i) * c_.d_latent;
        double key = 0;
        for (uint32_t k = 0; k < c_.d_latent; ++k) key += key_up[row + k] * latents[j][k];
        logit += nope[i] * key;
      }
      weights.push_back(std::exp(logit / std::sqrt(c_.d_query())));
      sum += weights.back();
    }
    Vector out(c_.d_value, 0.0);
    for (size_t j = 0; j <= token; ++j) {
      const Vector value =
          Multiply(latents[j], value_up, size_t{head} * c_.d_latent * c_.d_value, c_.d_value);
      for (uint32_t i = 0; i < c_.d_value; ++i) out[i] += weights[j] / sum * value[i];
    }
    return out;
  }

  void RunLayer(uint32_t layer, uint64_t position, std::vector<Vector>& x) const {
    const auto tensor = [&](ReferenceTensor which) { return GenerateTensor(c_, layer, which); };
    const auto key_up = tensor(ReferenceTensor::kKeyUp);
    const auto value_up = tensor(ReferenceTensor::kValueUp);
    const auto query_weights = tensor(ReferenceTensor::kQuery);
    const auto latent_weights = tensor(ReferenceTensor::kLatent);
    const auto attention_out = tensor(ReferenceTensor::kAttentionOut);
    std::vector<Vector> queries, latents, keys;
    for (size_t t = 0; t < x.size(); ++t) {
      const Vector normed = Norm(x[t]);
      queries.push_back(Multiply(normed, query_weights, 0, c_.heads * c_.d_query()));
      const Vector row = Multiply(normed, latent_weights, 0, c_.d_row());
      latents.push_back(Stored(Norm(Slice(row, 0, c_.d_latent))));
      keys.push_back(Stored(Rope(Slice(row, c_.d_latent, c_.d_rope), position + t)));
    }
    for (size_t t = 0; t < x.size(); ++t) {
      Vector values;
      for (uint32_t head = 0; head < c_.heads; ++head) {
        const Vector out =
            AttendHead(head, queries[t], latents, keys, position, t, key_up, value_up);
        values.insert(values.end(), out.begin(), out.end());
      }
      const Vector branch = Multiply(values, attention_out, 0, c_.hidden);
      for (uint32_t i = 0; i < c_.hidden; ++i) x[t][i] += branch[i];
    }
    RunMlp(layer, x);
  }

  void RunMlp(uint32_t layer, std::vector<Vector>& x) const {
    const auto gate = GenerateTensor(c_, layer, ReferenceTensor::kGate);
    const auto up = GenerateTensor(c_, layer, ReferenceTensor::kUp);
    const auto down = GenerateTensor(c_, layer, ReferenceTensor::kDown);
    for (Vector& token : x) {
      const Vector normed = Norm(token);
      Vector a = Multiply(normed, gate, 0, c_.mlp);
      const Vector b = Multiply(normed, up, 0, c_.mlp);
      for (uint32_t i = 0; i < c_.mlp; ++i) a[i] = a[i] / (1 + std::exp(-a[i])) * b[i];
      const Vector branch = Multiply(a, down, 0, c_.hidden);
      for (uint32_t i = 0; i < c_.hidden; ++i) token[i] += branch[i];
    }
  }

  const ReferenceConfig c_;
  const bool with_rope_;
};

}  // namespace ckv::testing_reference
