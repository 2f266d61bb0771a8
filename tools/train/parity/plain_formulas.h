// The formulas that a Llama model is made of, and their derivatives, in plain
// loops over rows of doubles. Backward functions add to the gradients they are
// given.
#ifndef TESSERA_TOOLS_TRAIN_PARITY_PLAIN_FORMULAS_H_
#define TESSERA_TOOLS_TRAIN_PARITY_PLAIN_FORMULAS_H_

#include <cstddef>
#include <vector>

namespace tessera::train::plain {

using Numbers = std::vector<double>;  // Row by row.

// y[r] = w x[r], for rows of `inputs` numbers; w is [outputs, inputs].
Numbers Linear(const Numbers& x, const Numbers& w, size_t inputs);
void LinearBackward(const Numbers& dy, const Numbers& x, const Numbers& w,
                    size_t inputs, Numbers& dx, Numbers& dw);

// y = g x / sqrt(mean x^2 + epsilon), row by row; g is a row.
Numbers RmsNorm(const Numbers& x, const Numbers& g, double epsilon);
void RmsNormBackward(const Numbers& dy, const Numbers& x, const Numbers& g,
                     double epsilon, Numbers& dx, Numbers& dg);

// y = silu(gate) up.
Numbers SwiGlu(const Numbers& gate, const Numbers& up);
void SwiGluBackward(const Numbers& dy, const Numbers& gate, const Numbers& up,
                    Numbers& dgate, Numbers& dup);

struct HeadSizes {
  size_t sequences, length, heads, kv_heads, head_size;
};

// Turns pairs (j, j + d/2) of each of the `heads` heads of a token by its
// position times base^(-2j/d) times `direction`: 1, or -1 for gradients.
void Rotate(const HeadSizes& sizes, size_t heads, double base, double direction,
            Numbers& x);

// softmax(q k^T / sqrt(d)) v, causal, within each sequence. q is [tokens,
// heads, d], k and v [tokens, kv_heads, d].
Numbers Attend(const HeadSizes& sizes, const Numbers& q, const Numbers& k,
               const Numbers& v);
void AttendBackward(const HeadSizes& sizes, const Numbers& dy, const Numbers& q,
                    const Numbers& k, const Numbers& v, Numbers& dq,
                    Numbers& dk, Numbers& dv);

// Probabilities of a row of logits.
Numbers Softmax(const double* logits, size_t count);

}  // namespace tessera::train::plain

#endif  // TESSERA_TOOLS_TRAIN_PARITY_PLAIN_FORMULAS_H_
