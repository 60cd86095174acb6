// What the JVM makes of faults: null pointers, divisions by zero and full stacks that its own signal handler finds.

import java.security.MessageDigest;
import java.util.*;
import java.util.concurrent.*;

public class JvmFaults {
    static int[] none;
    static int zero;
    static volatile Object garbage;

    static int depth(int n) {
        return depth(n + 1) + 1;
    }

    static long round(int seed) throws Exception {
        long sum = 0;
        int[] few = new int[4];
        for (int i = 0; i < 3000; i++) {
            try {
                sum += none[i];
            } catch (NullPointerException e) {
                sum += 3;
            }
            try {
                sum += i / zero;
            } catch (ArithmeticException e) {
                sum += 5;
            }
            try {
                sum += few[i & 7];
            } catch (ArrayIndexOutOfBoundsException e) {
                sum += 7;
            }
        }
        try {
            depth(0);
        } catch (StackOverflowError e) {
            sum += 11;
        }
        Map<String, Integer> map = new HashMap<>();
        for (int i = 0; i < 20000; i++) map.merge("k" + (i * seed % 997), i, Integer::sum);
        for (int value : new TreeMap<>(map).values()) sum = sum * 31 + value;
        garbage = new byte[1 << 20];
        byte[] digest = MessageDigest.getInstance("SHA-256").digest(Long.toString(sum).getBytes());
        return sum ^ (digest[0] & 0xff);
    }

    public static void main(String[] args) throws Exception {
        System.out.println("ready");
        System.in.read();
        ExecutorService pool = Executors.newFixedThreadPool(4);
        List<Future<Long>> results = new ArrayList<>();
        for (int i = 0; i < 12; i++) {
            int seed = i + 3;
            results.add(pool.submit(() -> round(seed) ^ round(seed + 1)));
        }
        for (Future<Long> each : results) System.out.println(each.get());
        System.gc();
        pool.shutdown();
    }
}
