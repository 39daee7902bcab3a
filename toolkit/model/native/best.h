/* What a beam reads of a row of logits, without a copy of it: two logarithms of sums and the likeliest allowed tokens.
 *
 * Included by rows.h, under the instruction set of whoever includes that. Element i goes to lane i % 8, lanes are summed in
 * blocks of BLOCK elements and then blocks in order, so that 50,000 numbers are added about as exactly as torch adds them.
 */
enum { BLOCK = 512 };

/* Elements i ... i + 7; those past n, and those that the mask (or NULL) does not allow, are -infinity. */
INLINE v8 eight(const float *x, int64_t n, const uint32_t *mask, int64_t i) {
    v8 v;
    if (i + LANES <= n) v = load(x + i);
    else {
        float rest[LANES];
        for (int j = 0; j < LANES; j++) rest[j] = i + j < n ? x[i + j] : -INFINITY;
        v = load(rest);
    }
    if (!mask) return v;
    i8 bits = (i8){1, 2, 4, 8, 16, 32, 64, 128} & (int32_t)(mask[i / 32] >> i % 32 & 255);
    return choose(bits != 0, v, all(-INFINITY));
}

/* Whether elements i ... i + 31 have any that is allowed. */
INLINE int wanted(const uint32_t *mask, int64_t i) { return !mask || mask[i / 32]; }

/* log of the sum of e^x over what is allowed; -infinity where nothing is. NaN where one of them is NaN or infinity. */
INLINE float log_sum(const float *x, int64_t n, const uint32_t *mask) {
    v8 most = all(-INFINITY), sums = all(0.0f);
    for (int64_t from = 0; from < n; from += 32)
        for (int64_t i = from; wanted(mask, from) && i < from + 32 && i < n; i += LANES) {
            v8 v = eight(x, n, mask, i);
            most = choose(v > most, v, most);
        }
    float largest = most[0];
    for (int j = 1; j < LANES; j++) largest = most[j] > largest ? most[j] : largest;
    if (largest == -INFINITY) return largest;
    for (int64_t block = 0; block < n; block += BLOCK) {
        v8 part = all(0.0f);
        for (int64_t from = block; from < block + BLOCK && from < n; from += 32)
            for (int64_t i = from; wanted(mask, from) && i < from + 32 && i < n; i += LANES) {
                v8 v = eight(x, n, mask, i);
                part += choose(v == all(-INFINITY), all(0.0f), exponential(v - all(largest)));
            }
        sums += part;
    }
    return (float)((double)largest + log((double)total(sums)));
}

/* The `count` likeliest allowed tokens, the likeliest first, of equal ones the lower id; returns how many there are. */
INLINE int64_t likeliest(const float *x, int64_t n, const uint32_t *mask, int64_t count, int32_t *ids, float *values) {
    int64_t found = 0;
    float least = count ? -INFINITY : INFINITY; /* what a token must be above */
    for (int64_t from = 0; from < n; from += 32)
        for (int64_t i = from; wanted(mask, from) && i < from + 32 && i < n; i += LANES) {
            v8 v = eight(x, n, mask, i);
            i8 more = v > all(least);
            int64_t any[4];
            memcpy(any, &more, sizeof any);
            if (!(any[0] | any[1] | any[2] | any[3])) continue;
            for (int j = 0; j < LANES; j++) {
                if (!(v[j] > least)) continue;
                found += found < count;
                int64_t place = found - 1;
                for (; place > 0 && values[place - 1] < v[j]; place--) values[place] = values[place - 1], ids[place] = ids[place - 1];
                values[place] = v[j], ids[place] = (int32_t)(i + j);
                if (found == count) least = values[count - 1];
            }
        }
    return found;
}

static void best(const float *x, int64_t n, const uint32_t *mask, int64_t count, choice *to) {
    int sunk = 0;
    for (int64_t i = 0; i < n; i++) sunk |= x[i] == -INFINITY;
    to->norm = sunk ? NAN : log_sum(x, n, NULL);
    to->legal = mask ? log_sum(x, n, mask) : to->norm;
    to->found = likeliest(x, n, mask, count, to->ids, to->values);
    if (to->norm == -INFINITY) to->norm = NAN; /* nothing in it is a number */
}
