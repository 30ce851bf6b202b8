import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import org.apache.kafka.common.utils.Exit;

/** Runs Apache's command-line tools in one JVM. Reads a command per line and prints a result per line, both JSON. */
public class KavkaTools {
    /** Thrown instead of exiting the JVM. A tool may catch it and exit again, so the first exit code is the result. */
    private static class Ended extends RuntimeException {
    }

    private static Integer firstCode;

    private static void end(int code) {
        if (firstCode == null) {
            firstCode = code;
        }
        throw new Ended();
    }

    /** Redirects the output of Scala code, which ignores System.setOut. */
    private static void scalaStreams(PrintStream out, PrintStream err) throws ReflectiveOperationException {
        Class<?> console = Class.forName("scala.Console$");
        Object module = console.getField("MODULE$").get(null);
        console.getMethod("setOutDirect", PrintStream.class).invoke(module, out);
        console.getMethod("setErrDirect", PrintStream.class).invoke(module, err);
    }

    public static void main(String[] ignored) throws Exception {
        ObjectMapper json = new ObjectMapper();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream results = System.out;
        Exit.setExitProcedure((code, message) -> end(code));
        Exit.setHaltProcedure((code, message) -> end(code));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode command = json.readTree(line);
            String[] args = json.convertValue(command.get("args"), String[].class);
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            ByteArrayOutputStream err = new ByteArrayOutputStream();
            System.setOut(new PrintStream(out, true, "UTF-8"));
            System.setErr(new PrintStream(err, true, "UTF-8"));
            System.setIn(new ByteArrayInputStream(command.get("stdin").asText().getBytes(StandardCharsets.UTF_8)));
            scalaStreams(System.out, System.err);
            firstCode = null;
            boolean failed = false;
            try {
                Class.forName(command.get("class").asText()).getMethod("main", String[].class).invoke(null, (Object) args);
            } catch (InvocationTargetException e) {
                failed = true;
                if (!(e.getCause() instanceof Ended)) {
                    System.err.println(e.getCause());
                }
            }
            ObjectNode result = json.createObjectNode();
            result.put("code", firstCode != null ? firstCode : failed ? 1 : 0);
            result.put("out", out.toString("UTF-8"));
            result.put("err", err.toString("UTF-8"));
            results.println(json.writeValueAsString(result));
            results.flush();
        }
    }
}
