/* A decoder for raw DEFLATE (RFC 1951), for the launcher of the one-file build.
 *
 * Owns: turning one complete compressed chunk in memory into one buffer of known size. Refuses to know files or
 * threads. It exists because the launcher is linked statically and must build with gcc alone, where no static zlib may
 * be. Invariants: never reads outside [in, in + in_size), never writes outside [out, out + out_size), ends on any
 * input.
 */
#ifndef QWEN3_ONEFILE_INFLATE_H
#define QWEN3_ONEFILE_INFLATE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
  kMaxCodeLength = 15,   /* RFC 1951: no code is longer */
  kPrimaryBits = 10,     /* one look-up decodes codes of up to this length; longer ones walk bit by bit */
  kLiteralSymbols = 288, /* 0..255 bytes, 256 end of block, 257..287 lengths (the last two are invalid) */
  kDistanceSymbols = 32
};

/* Canonical Huffman code. primary: entry = symbol << 4 | length, 0 where the code is longer than kPrimaryBits. */
typedef struct {
  uint16_t primary[1 << kPrimaryBits];
  uint16_t count[kMaxCodeLength + 1]; /* codes of each length */
  uint16_t symbols[kLiteralSymbols];  /* in canonical order */
} HuffmanCode;

typedef struct {
  const uint8_t* in;
  size_t in_size, in_position;
  uint64_t bits;       /* not yet used, the next one lowest */
  unsigned n_bits;     /* valid in `bits`; zeros follow beyond the input's end ... */
  unsigned n_past_end; /* ... of which this many bits were made up */
} BitReader;

static inline void refill(BitReader* reader) {
  if (reader->in_size - reader->in_position >= 8) {
    uint64_t word;
    memcpy(&word, reader->in + reader->in_position, 8); /* little-endian machines only, see the launcher */
    reader->bits |= word << reader->n_bits;
    const unsigned taken = (63 - reader->n_bits) >> 3;
    reader->in_position += taken;
    reader->n_bits += taken * 8;
    return;
  }
  while (reader->n_bits <= 56) {
    if (reader->in_position < reader->in_size) {
      reader->bits |= (uint64_t)reader->in[reader->in_position++] << reader->n_bits;
    } else {
      reader->n_past_end += 8;
    }
    reader->n_bits += 8;
  }
}

static inline unsigned take(BitReader* reader, unsigned n) {
  const unsigned value = (unsigned)(reader->bits & (((uint64_t)1 << n) - 1));
  reader->bits >>= n;
  reader->n_bits -= n;
  return value;
}

/* Builds the code for lengths [n]. Returns 0, or -1 when more codes are given than there is room for. An incomplete
 * code is legal here; decoding a bit pattern that it lacks fails. */
static int build_code(HuffmanCode* code, const uint8_t* lengths, unsigned n) {
  memset(code->count, 0, sizeof code->count);
  for (unsigned i = 0; i < n; i++) code->count[lengths[i]]++;
  code->count[0] = 0;
  int left = 1;
  for (unsigned length = 1; length <= kMaxCodeLength; length++) {
    left = left * 2 - code->count[length];
    if (left < 0) return -1;
  }
  uint16_t offsets[kMaxCodeLength + 2] = {0};
  uint16_t first[kMaxCodeLength + 2] = {0};
  for (unsigned length = 1; length <= kMaxCodeLength; length++) {
    offsets[length + 1] = (uint16_t)(offsets[length] + code->count[length]);
    first[length + 1] = (uint16_t)((first[length] + code->count[length]) << 1);
  }
  memset(code->primary, 0, sizeof code->primary);
  for (unsigned symbol = 0; symbol < n; symbol++) {
    const unsigned length = lengths[symbol];
    if (length == 0) continue;
    code->symbols[offsets[length]++] = (uint16_t)symbol;
    const unsigned canonical = first[length]++;
    if (length > kPrimaryBits) continue;
    unsigned reversed = 0; /* codes come highest bit first, the stream lowest bit first */
    for (unsigned bit = 0; bit < length; bit++) reversed |= ((canonical >> bit) & 1u) << (length - 1 - bit);
    for (unsigned entry = reversed; entry < (1u << kPrimaryBits); entry += 1u << length) {
      code->primary[entry] = (uint16_t)(symbol << 4 | length);
    }
  }
  return 0;
}

/* The next symbol, or -1 when the bits are no code. Needs kMaxCodeLength bits in the reader. */
static inline int decode_symbol(BitReader* reader, const HuffmanCode* code) {
  const unsigned entry = code->primary[reader->bits & ((1u << kPrimaryBits) - 1)];
  if (entry != 0) {
    reader->bits >>= entry & 15;
    reader->n_bits -= entry & 15;
    return (int)(entry >> 4);
  }
  int value = 0, first = 0, index = 0;
  for (unsigned length = 1; length <= kMaxCodeLength; length++) {
    value |= (int)take(reader, 1);
    const int count = code->count[length];
    if (value - first < count) return code->symbols[index + value - first];
    index += count;
    first = (first + count) << 1;
    value <<= 1;
  }
  return -1;
}

/* Reads the code lengths of a dynamic block into both codes. Returns 0, or -1 for a broken header. */
static int read_dynamic_codes(BitReader* reader, HuffmanCode* literals, HuffmanCode* distances) {
  static const uint8_t order[19] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
  refill(reader);
  const unsigned n_literals = take(reader, 5) + 257, n_distances = take(reader, 5) + 1, n_lengths = take(reader, 4) + 4;
  if (n_literals > 286 || n_distances > 30) return -1;
  uint8_t lengths[kLiteralSymbols + kDistanceSymbols] = {0};
  for (unsigned i = 0; i < n_lengths; i++) {
    refill(reader);
    lengths[order[i]] = (uint8_t)take(reader, 3);
  }
  if (build_code(literals, lengths, 19) != 0) return -1;
  memset(lengths, 0, sizeof lengths);
  for (unsigned i = 0; i < n_literals + n_distances;) {
    refill(reader);
    if (reader->n_past_end > reader->n_bits) return -1;
    const int symbol = decode_symbol(reader, literals);
    if (symbol < 0) return -1;
    if (symbol < 16) {
      lengths[i++] = (uint8_t)symbol;
      continue;
    }
    if (symbol == 16 && i == 0) return -1;
    const uint8_t value = symbol == 16 ? lengths[i - 1] : 0;
    const unsigned repeat =
        symbol == 16 ? 3 + take(reader, 2) : (symbol == 17 ? 3 + take(reader, 3) : 11 + take(reader, 7));
    if (i + repeat > n_literals + n_distances) return -1;
    memset(lengths + i, value, repeat);
    i += repeat;
  }
  if (lengths[256] == 0) return -1; /* a block that can never end */
  if (build_code(distances, lengths + n_literals, n_distances) != 0) return -1;
  return build_code(literals, lengths, n_literals);
}

/* Decodes one chunk that must give exactly out_size bytes. Returns 0, or -1 when it is damaged. */
static int inflate_chunk(const uint8_t* in, size_t in_size, uint8_t* out, size_t out_size) {
  static const uint16_t length_base[29] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                           31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
  static const uint8_t length_extra[29] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                           2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
  static const uint16_t distance_base[30] = {1,    2,    3,    4,    5,    7,    9,    13,    17,    25,
                                             33,   49,   65,   97,   129,  193,  257,  385,   513,   769,
                                             1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
  static const uint8_t distance_extra[30] = {0, 0, 0, 0, 1, 1, 2, 2,  3,  3,  4,  4,  5,  5,  6,
                                             6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13};
  BitReader reader = {in, in_size, 0, 0, 0, 0};
  HuffmanCode literals, distances;
  size_t position = 0;
  for (unsigned last = 0; !last;) {
    refill(&reader);
    if (reader.n_past_end > reader.n_bits) return -1;
    last = take(&reader, 1);
    const unsigned type = take(&reader, 2);
    if (type == 0) { /* stored: the rest of the byte is skipped, then length, its complement, and the bytes */
      take(&reader, reader.n_bits & 7);
      refill(&reader);
      const unsigned length = take(&reader, 16);
      refill(&reader);
      if ((take(&reader, 16) ^ 0xffffu) != length) return -1;
      /* Give back whole bytes that were read ahead, then copy from the input itself. */
      if (reader.n_past_end > reader.n_bits) return -1;
      reader.in_position -= (reader.n_bits - reader.n_past_end) / 8;
      reader.bits = 0;
      reader.n_bits = reader.n_past_end = 0;
      if (length > in_size - reader.in_position || length > out_size - position) return -1;
      memcpy(out + position, in + reader.in_position, length);
      reader.in_position += length;
      position += length;
      continue;
    }
    if (type == 1) { /* fixed codes */
      uint8_t lengths[kLiteralSymbols];
      memset(lengths, 8, 144);
      memset(lengths + 144, 9, 112);
      memset(lengths + 256, 7, 24);
      memset(lengths + 280, 8, 8);
      if (build_code(&literals, lengths, kLiteralSymbols) != 0) return -1;
      memset(lengths, 5, 30);
      if (build_code(&distances, lengths, 30) != 0) return -1;
    } else if (type != 2 || read_dynamic_codes(&reader, &literals, &distances) != 0) {
      return -1;
    }
    for (;;) {
      refill(&reader); /* at least 56 bits: a length with its extra bits (20) and a distance with its own (28) */
      if (reader.n_past_end > reader.n_bits) return -1;
      int symbol = decode_symbol(&reader, &literals);
      if (symbol < 256) {
        if (symbol < 0 || position == out_size) return -1;
        out[position++] = (uint8_t)symbol;
        continue;
      }
      if (symbol == 256) break;
      symbol -= 257;
      if (symbol >= 29) return -1;
      const size_t length = length_base[symbol] + take(&reader, length_extra[symbol]);
      const int distance_symbol = decode_symbol(&reader, &distances);
      if (distance_symbol < 0 || distance_symbol >= 30) return -1;
      const size_t distance = distance_base[distance_symbol] + take(&reader, distance_extra[distance_symbol]);
      if (distance > position || length > out_size - position) return -1;
      uint8_t* to = out + position;
      const uint8_t* from = to - distance;
      position += length;
      if (distance >= length) {
        memcpy(to, from, length);
      } else {
        for (size_t i = 0; i < length; i++) to[i] = from[i]; /* overlapping: repeats the last `distance` bytes */
      }
    }
  }
  return position == out_size && reader.n_past_end <= reader.n_bits ? 0 : -1;
}

#endif /* QWEN3_ONEFILE_INFLATE_H */
